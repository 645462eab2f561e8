// The norms side by side: one x, one dy, one gamma through every layer. data: shape, controls, start,
// layers: [{op, keys: [controls it depends on], variants}].
'use strict';

const kColumns = ['sets', 'xhat', 'direct', 'mean', 'projection', 'dx'];
const kRole = {neighbours: 'projection', shift: 'projection'};  // what stands where in the picture

// Their rows are whole samples here.
for (const op of ['layer_norm', 'rms_norm']) kLessons[op].rows = false;

const layers = new Map(data.layers.map((layer) => [layer.op, layer]));
const variantOf = (op) => layers.get(op)?.variants.find((v) => layers.get(op).keys.every((key) => v[key] === state[key]));

function mapOf(op, variant, key, options) {
  return new HeatMap({op, key, variant, label: `${kLessons[op].title}, ${key}`, grid: Grid.of(data.shape.with(0, variant.shape[0]), false),
    width: Grid.of(data.shape, false).width, values: variant.t[key], plain: true, ...options});
}

function headOf(op, variant) {
  const name = op === 'group_norm' ? `GroupNorm(${state.groups})` : kLessons[op].title;
  const sets = variant.set ? `${variant.set.length} ${variant.set.length === 1 ? 'set' : 'sets'} of ${variant.set[0].m}` : `windows of ${variant.window.size}`;
  const same = op !== 'group_norm' ? null : (data.controls[0].says || {})[state.groups];
  return h('div', {class: 'norm-name'}, h('h2', {}, ...(name.length > 12 ? name.split(/(?=Norm)/).flatMap((part) => [h('wbr'), part]) : [name])), h('p', {class: 'small soft'}, sets, same ? h('span', {class: 'same'}, same) : null),
    h('p', {class: 'small'}, m(kSays[op])));
}

const kSays = {
  batch_norm: 'one channel, all samples', instance_norm: 'one channel of one sample',
  group_norm: 'neighbouring channels of one sample', layer_norm: 'one sample',
  rms_norm: 'one sample, no mean', local_response_norm: 'a window of channels, each value its own',
  softmax2d: 'the channels of one pixel: not a norm, the same pattern',
};

function rowOf(op) {
  const variant = variantOf(op), keys = ['direct', 'mean', 'projection', 'neighbours', 'shift'].filter((key) => variant.t[key]);
  const scale = largest([...keys, 'dx'].flatMap((key) => variant.t[key]));
  const cells = kColumns.map((column) => {
    const key = keys.find((k) => (kRole[k] || k) === column) || column;
    if (column === 'sets') {
      return variant.sets && op !== 'local_response_norm' ? mapOf(op, variant, 'sets', {values: null, hues: variant.sets.map(hue)})
        : mapOf(op, variant, 'denom', {});
    }
    if (column === 'xhat' && !variant.t.xhat) return mapOf(op, variant, 'y', {});
    return variant.t[key] ? mapOf(op, variant, key, {scale: column === 'xhat' ? undefined : scale}) : null;
  });
  return h('section', {class: 'norm-row', 'data-op': op}, headOf(op, variant),
    cells.map((map, k) => h('figure', {class: 'norm-cell'},
      h('figcaption', {}, map ? captionOf(op, map.key, k) : null),
      map ? map.svg : h('p', {class: 'small soft none'}, 'no mean is subtracted: nothing to take away'))));
}

function captionOf(op, key, column) {
  const sign = column < 3 ? null : column === 5 ? '=' : '+';
  const symbol = key === 'sets' ? 'sets' : kSymbols[key];
  return [sign ? h('span', {class: 'op'}, sign) : null, m(`<b>${symbol}</b>`, kTermKind[key] || '')];
}

function draw() {
  inputs.replaceChildren(...drawInputs());
  rows.replaceChildren(...data.layers.map((layer) => rowOf(layer.op)));
}

function drawInputs() {
  const variant = variantOf('batch_norm'), gamma = variant.gamma;
  const strip = new HeatMap({key: 'gamma', label: 'gamma', grid: new Grid(1, gamma.length, 1, {block: ' ', row: 'c'}), values: gamma,
    width: Grid.of(data.shape, false).width, plain: true,
    onselect: (i, how) => select('batch_norm', 'gamma', variant.param.indexOf(i), how)});
  return [figure(mapOf('batch_norm', variant, 'x', {}), m('<b><i>x</i></b>')), figure(mapOf('batch_norm', variant, 'dy', {}), m('<b><i>dy</i></b>')),
    figure(strip, m('<b><i>γ</i></b>'))];
}

function membersOf(op, variant, i) {
  if (op !== 'local_response_norm') return (at) => variant.sets[at] === variant.sets[i];
  const near = new Set([...windowOf(variant, i, false), ...windowOf(variant, i, true)]);
  return (at) => near.has(at);
}

function show() {
  const {op, key, i} = selected, channel = variantOf('batch_norm').param[i];
  for (const map of maps) {
    if (map.op) map.show(i, membersOf(map.op, map.variant, i));
    else map.show(channel, (at) => at === channel);  // gamma
  }
  panel.classList.add('open');
  inspect(panel, op, variantOf(op), key, i, unselect);
  panel.prepend(h('p', {class: 'small soft kicker'}, kLessons[op].title));
}

const rows = h('div', {class: 'norm-rows'}), inputs = h('div', {class: 'maps inputs'});
pageTop(`gradus ${data.version} · how gradients of normalization work`, 'The norms side by side', h('div', {},
  h('p', {}, 'One formula, ', m('<i>dx</i> = <span class="c-direct">rstd·<i>d</i></span> <span class="c-mean">− rstd·<i>m</i>₁</span> <span class="c-projection">− rstd·<i>x̂</i>·<i>m</i>₂</span>'),
    ', over different sets of elements. All rows get the same x and dy, and the five norms the same γ: between these what differs is only who shares statistics with whom. The last two look like it.')), keepInAddress);
document.body.append(controlBar(data.controls, state, redraw),
  h('div', {class: 'columns wrap poster'}, h('main', {}, h('section', {}, h('h2', {}, 'What goes in'), h('p', {class: 'soft'},
      'Point at a value, or tab to a map and use the arrow keys: the same element is marked in every row, each time with the elements that share its statistics there, and its formulas open below. A click keeps it; Escape lets go.'), inputs,
    h('div', {class: 'legend'}, h('span', {}, 'negative', h('span', {class: 'scale'}), 'positive'), h('span', {}, 'the terms of a row and their sum have one scale'))), rows), panel));
pageEnd(data.source);
followAddress();
