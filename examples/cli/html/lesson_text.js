// What the lessons say, by layer: the letters are those of core/ops/normalization.h.
'use strict';

const kSymbols = {
  x: '<i>x</i>', xhat: '<i>x̂</i>', y: '<i>y</i>', dy: '<i>dy</i>', d: '<i>d</i>', dx: '<i>dx</i>',
  gamma: '<i>γ</i>', beta: '<i>β</i>', dgamma: '<i>dγ</i>', dbeta: '<i>dβ</i>', denom: 'denom',
  direct: 'direct', mean: 'mean', projection: 'projection', neighbours: 'neighbours', shift: 'shift',
  fd: 'finite difference', t: '<i>t</i>',
};
const kTermKind = {direct: 'c-direct', mean: 'c-mean', projection: 'c-projection',
                   neighbours: 'c-projection', shift: 'c-projection', dx: 'c-dx'};

const kNormTerms = {
  direct: ['rstd·<i>d</i>', 'what dx would be if μ and rstd were constants'],
  mean: ['−rstd·<i>m</i>₁', 'moving a whole set changes nothing, since μ moves along: so the part of d that would move it is taken away. One value per set'],
  projection: ['−rstd·<i>x̂</i>·<i>m</i>₂', 'stretching a whole set changes nothing, since rstd shrinks it back: so the part of d along x̂ is taken away'],
};

const kLessons = {
  batch_norm: {
    title: 'BatchNorm', rows: false,
    lead: 'One mean and one variance per channel, taken over all samples and all positions. γ is one number for the whole set.',
    batch: 'The set runs over the samples: with every sample more, all statistics and all of dx change.',
  },
  instance_norm: {
    title: 'InstanceNorm', rows: false,
    lead: 'One mean and one variance for each channel of each sample. γ is one number for the whole set.',
    batch: 'No set crosses samples: dx of a sample stays as it is; only dγ and dβ add the new samples.',
  },
  group_norm: {
    title: 'GroupNorm', rows: false,
    lead: 'One mean and one variance for each sample and group of neighbouring channels. Where a group has several channels γ varies within the set, so it stays inside m₁ and m₂.',
    batch: 'No set crosses samples: dx of a sample stays as it is; only dγ and dβ add the new samples.',
  },
  layer_norm: {
    title: 'LayerNorm', rows: true,
    lead: 'One mean and one variance per row. γ varies within the set, so it stays inside m₁ and m₂.',
    batch: 'No set crosses rows: dx of a row stays as it is; only dγ and dβ add the new rows.',
  },
  rms_norm: {
    title: 'RMSNorm', rows: true,
    lead: 'One root mean square per row, and no mean: LayerNorm without μ, m₁ and β. γ varies within the set, so it stays inside m₂.',
    batch: 'No set crosses rows: dx of a row stays as it is; only dγ adds the new rows.',
  },
  local_response_norm: {
    title: 'LocalResponseNorm', rows: false,
    lead: 'Each value is divided by a power of the sum of squares in a window of neighbouring channels. There are no sets here: each value has a window of its own.',
    batch: 'No window crosses samples: those that were there stay as they are.',
    terms: {
      direct: ['<i>dy</i>·denom<sup>−β</sup>', 'what dx would be if the denominators were constants'],
      neighbours: ['−2β·α/size·<i>x</i>·Σ<i>t</i>', 'x also makes every denominator larger whose window holds it: the sum runs over the mirrored window'],
    },
  },
  softmax2d: {
    title: 'Softmax2d', rows: false,
    lead: 'The channels of one pixel become positive numbers that add up to 1. It is no normalization by mean and variance, and its backward has the same shape: a direct term, and one that takes away what the set cannot do.',
    batch: 'No set crosses samples: those that were there stay as they are.',
    terms: {
      direct: ['<i>y</i>·<i>dy</i>', 'what raising one exponential does, were the total a constant'],
      shift: ['−<i>y</i>·<i>s</i>', 'the outputs add up to 1: raising one lowers all. One s = Σ dy·y per pixel'],
    },
  },
};
for (const op of ['batch_norm', 'instance_norm', 'group_norm', 'layer_norm', 'rms_norm']) {
  kLessons[op].terms = {...kNormTerms};
}
delete kLessons.rms_norm.terms.mean;
kLessons.rms_norm.terms.direct = [kNormTerms.direct[0], 'what dx would be if rstd were a constant'];

// RMSNorm has a mean square where the others have a variance; the slip's own text says so.
const kRmsSlips = {
  unbiased_variance: {title: 'mean square over m − 1'},
};

// Why a slip does no harm in a layer.
const kHarmless = {
  gamma_outside: 'in this layer γ is one number for the whole set.',
  window_not_mirrored: 'a window of odd size is its own mirror.',
};

// How element i is called: x[1, 4, 0, 2], or x[2, 5].
function indexOf(shape, i) {
  const index = [];
  for (let axis = shape.length - 1; axis >= 0; --axis) {
    index.unshift(i % shape[axis]);
    i = Math.floor(i / shape[axis]);
  }
  return index.join(', ');
}

// Which elements a set has, in words.
function setName(op, variant, set) {
  const c = variant.shape[1], groups = variant.groups || 1, each = c / groups;
  const pixels = variant.shape.slice(2).reduce((a, b) => a * b, 1);
  const span = (from, count) => count === 1 ? `channel ${from}` : `channels ${from} to ${from + count - 1}`;
  switch (op) {
    case 'batch_norm': return `channel ${set}, ${variant.shape[0] === 1 ? 'of one sample' : `all ${variant.shape[0]} samples`}`;
    case 'instance_norm': return variant.mode === 'eval' ? `channel ${set}` : `sample ${Math.floor(set / c)}, channel ${set % c}`;
    case 'group_norm': return `sample ${Math.floor(set / groups)}, ${span(set % groups * each, each)}`;
    case 'softmax2d': return `sample ${Math.floor(set / pixels)}, pixel ${set % pixels}`;
    default: return kLessons[op].rows ? `row ${set}` : `sample ${set}`;
  }
}
