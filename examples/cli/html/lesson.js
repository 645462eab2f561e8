// The lesson of one layer. data: op, eps, shape, controls [{key, label, values, says}], start, and
// variants: one derivation by gradus for each position of the controls.
'use strict';

const lesson = kLessons[data.op], isLrn = data.op === 'local_response_norm', isSoftmax = data.op === 'softmax2d';
let variant = null;

// Whether more samples, or rows, can be had.
const grows = data.controls.some((c) => c.key === 'batch' && c.values.length > 1);
const variantOf = () => data.variants.find((v) => data.controls.every((c) => v[c.key] === state[c.key]));

// ---- maps ---------------------------------------------------------------------------------------

const fullGrid = () => Grid.of(data.shape, lesson.rows);

function mapOf(key, options = {}) {
  return new HeatMap({op: data.op, key, label: key, grid: Grid.of(variant.shape, lesson.rows), width: fullGrid().width,
    values: variant.t[key], ...options});
}

function paramMap(key, options = {}) {
  const values = variant[key];
  const grid = lesson.rows ? new Grid(1, 1, values.length, {}) : new Grid(1, values.length, 1, {row: 'c'});
  return new HeatMap({key, label: key, grid, values, onselect: (i, how) => select(data.op, key, variant.param.indexOf(i), how),
    width: lesson.rows ? fullGrid().width : undefined, ...options});
}

function section(title, ...children) {
  const no = document.querySelectorAll('main section').length + 1;
  main.append(h('section', {id: 's' + no}, h('h2', {}, h('span', {class: 'no'}, String(no)), title), ...children));
}

const shown = (key, formula) => [m(`<b>${kSymbols[key]}</b>`, kTermKind[key] || ''), formula ? m('= ' + formula) : null];

function drawSets() {
  if (isLrn) {
    section('A window for each value', h('p', {}, `Hover or focus a value: the solid frame is its window, of which the squares make denom; the dashed frame is the mirrored window, the channels whose denominators hold it. ${
      variant.window.before === variant.window.after ? 'For this odd size the two are the same channels.' : 'For this even size they differ.'}`),
      h('div', {class: 'maps two'}, figure(mapOf('x'), ...shown('x')), figure(mapOf('denom'), ...shown('denom', '<i>k</i> + α/size·Σ<i>x</i>²'))));
    return;
  }
  const hues = variant.sets.map(hue);
  const rows = variant.set.map((set, at) => h('tr', {'data-set': at}, h('td', {}, h('span', {class: 'swatch',
    style: `background:oklch(var(--set-light) var(--set-chroma) ${hue(at)})`}), setName(data.op, variant, at)),
    ...(isSoftmax ? [set.m, set.max, set.total] : [set.m, ...(set.mean == null ? [] : [set.mean]), set.var, set.rstd])
      .map((value, k) => h('td', {class: 'num'}, k === 0 ? String(value) : number(value)))));
  const rms = data.op === 'rms_norm', evaluation = variant.mode === 'eval';
  const names = isSoftmax ? ['m', 'max x', 'total'] : ['m', ...(rms ? [] : [evaluation ? 'running mean' : 'μ']),
    rms ? 'var (mean square)' : evaluation ? 'running var' : 'var (biased)', 'rstd'];
  section(isSoftmax ? 'Which elements add up to 1' : 'Which elements share statistics',
    h('p', {}, `One colour is one set: ${variant.set.length} ${variant.set.length === 1 ? 'set' : 'sets'} of m = ${variant.set[0].m}. `, h('span', {class: 'soft'}, variant.mode === 'eval' ? 'The statistics are the running ones, which no x of this batch moves: no element acts on another.' : grows ? lesson.batch : '')),
    h('div', {class: 'maps two'},
      figure(mapOf('sets', {values: null, hues}), m('<b>sets</b>')), figure(mapOf('x'), ...shown('x'))),
    h('details', {open: variant.set.length <= 8}, h('summary', {}, 'The statistics of each set'),
      h('div', {class: 'scroll'}, h('table', {class: 'sets'}, h('thead', {}, h('tr', {}, h('th', {}, 'set'), names.map((name) => h('th', {}, name)))), h('tbody', {}, rows)))));
}

function drawForward() {
  const maps = isLrn ? [figure(mapOf('y'), ...shown('y', '<i>x</i>·denom<sup>−β</sup>'))]
    : isSoftmax ? [figure(mapOf('y'), ...shown('y', 'exp(<i>x</i> − max)/total'))]
    : [figure(mapOf('xhat'), ...shown('xhat', data.op === 'rms_norm' ? '<i>x</i>·rstd' : '(<i>x</i> − <i>μ</i>)·rstd')),
       figure(mapOf('y'), ...shown('y', data.op === 'rms_norm' ? '<i>γ</i>·<i>x̂</i>' : '<i>γ</i>·<i>x̂</i> + <i>β</i>'))];
  section('Forward', h('div', {class: 'maps two'}, maps));
}

function formulaOf(evaluation) {
  const terms = Object.entries(lesson.terms).slice(0, evaluation ? 1 : undefined).map(([key, [formula]], k) =>
    `<span class="${kTermKind[key]}">${k > 0 && !formula.startsWith('−') ? '+ ' : ''}${formula.replace('−', k > 0 ? '− ' : '−')}</span>`);
  return `<i class="c-dx">dx</i> = ${terms.join(' ')}`;
}

function drawBackward() {
  const evaluation = variant.mode === 'eval';
  const keys = evaluation ? ['direct'] : Object.keys(lesson.terms);
  const scale = largest([...keys, 'dx'].flatMap((key) => variant.t[key]));
  const before = isSoftmax || isLrn ? [figure(mapOf('dy'), ...shown('dy', 'the gradient that comes in'))]
    : [figure(mapOf('dy'), ...shown('dy', 'the gradient that comes in')), figure(mapOf('d'), ...shown('d', '<i>dy</i>·<i>γ</i>'))];
  section(evaluation ? 'Backward in evaluation: one term' : `Backward: dx is the sum of ${['', '', 'two', 'three'][keys.length]} terms`,
    evaluation ? h('p', {}, 'In evaluation μ and rstd are constants: both are the running statistics. The two other terms fall away.')
      : data.op === 'rms_norm' ? h('p', {}, 'Nothing is subtracted from x, so there is no mean term: moving a whole row does change y.') : null,
    h('div', {class: 'maps two'}, before),
    h('p', {class: 'formula'}, m(formulaOf(evaluation))),
    h('p', {class: 'small soft'}, 'The maps of this sum have one common scale of colours.'),
    h('div', {class: 'maps two sum'},
      keys.map((key, k) => figure(mapOf(key, {scale}), ...shown(key, lesson.terms[key][0]), lesson.terms[key][1], k === 0 ? '' : '+')),
      figure(mapOf('dx', {scale}), ...shown('dx'), null, '=')));
}

function drawParameters() {
  if (!variant.dgamma) return;
  const keys = ['gamma', ...(variant.beta ? ['beta'] : []), 'dgamma', ...(variant.dbeta ? ['dbeta'] : [])];
  const formulas = {dgamma: 'Σ <i>dy</i>·<i>x̂</i>', dbeta: 'Σ <i>dy</i>'};
  section('The parameters', h('p', {}, data.op === 'rms_norm' ? 'dγ is a sum, not a mean, over all rows; m₂ is a mean over one row.'
      : 'dγ and dβ are sums, not means, over every element that shares the parameter, samples included: another set of elements, and another count, than m₁ and m₂ have.'),
    h('div', {class: lesson.rows ? 'maps two' : 'maps strips'}, keys.map((key) => figure(paramMap(key), ...shown(key, formulas[key])))));
}

function drawChecks() {
  const rows = variant.checks.map((check) => h('tr', {}, h('td', {class: 'wrap text'}, m(check.name), h('div', {class: 'small soft'}, check.why)),
    h('td', {class: 'num'}, number(check.value)),
    h('td', {class: 'num'}, check.bound == null ? '' : number(check.bound)),
    check.ok == null ? h('td', {class: 'text'}, 'cannot tell')
      : h('td', {class: 'text ' + (check.ok ? 'good' : 'bad')}, check.ok ? '✓ holds' : '✗ fails')));
  section('Checks', h('div', {class: 'scroll'}, h('table', {class: 'checks'}, h('thead', {}, h('tr', {},
      ['what must hold', 'difference', 'at most', ''].map((name) => h('th', {class: 'text'}, name)))), h('tbody', {}, rows))),
    h('div', {class: 'maps two'}, figure(mapOf('dx'), ...shown('dx', 'by the formula')),
      figure(mapOf('fd', {scale: largest(variant.t.dx)}), m('<b>dx</b>'), m('measured: (<i>L</i>(<i>x</i> + <i>h</i>) − <i>L</i>(<i>x</i> − <i>h</i>))/2<i>h</i>'))));
}

function drawHalf() {
  const half = variant.half;
  if (!half) return;
  const scale = largest(half.right);
  const map = (key, values, options) => mapOf(key, {values, ...options});
  section('In half precision', h('p', {}, half.text), h('div', {class: 'maps two'},
    figure(map('x', half.x), m('<b><i>x</i></b>'), 'as f16 holds it'),
    figure(map('x', half.squares), h('b', {}, isSoftmax ? 'exponentials' : 'squares'), 'taken in f16'),
    figure(map('y', half.wrong, {scale}), m('<b><i>y</i></b>'), 'by way of them: wrong'), figure(map('y', half.right, {scale}), m('<b><i>y</i></b>'), 'as gradus computes it')));
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);

function drawSlips() {
  if (variant.slips.length === 0) return;
  const scale = largest(variant.t.dx);
  const slips = variant.slips.map((slip) => ({...slip, title: slip.name.replaceAll('_', ' '), ...(data.op === 'rms_norm' ? kRmsSlips[slip.name] : {})}));
  const says = (slip) => slip.largest > 1e-12 * scale ? [sentence(slip.text), `Largest error ${number(slip.largest)} beside a largest |dx| of ${number(scale)}.`]
      : [sentence(slip.text), 'No error here: ' + (kHarmless[slip.name] || 'these numbers do not show it.')];
  section('What goes wrong', h('p', {}, 'The usual slips, made on purpose: each map shows the wrong dx minus the right one, on the scale of dx.'),
    h('div', {class: 'maps two'}, slips.map((slip) => figure(
      mapOf('dx', {label: slip.title, values: slip.error, scale}),
      h('b', {}, slip.title), null, says(slip).join('. ')))));
}

function draw() {
  variant = variantOf();
  main.replaceChildren();
  drawSets();
  drawForward();
  drawBackward();
  drawParameters();
  drawChecks();
  drawSlips();
  drawHalf();
}

// ---- the selection ------------------------------------------------------------------------------

function show() {
  const {key, i} = selected, p = variant.param?.[i];
  const ofParameter = p != null && ['gamma', 'beta', 'dgamma', 'dbeta'].includes(key);
  const windows = (grid) => [false, true].map((mirrored) => {
    const cells = windowOf(variant, i, mirrored);
    return {from: cells[0], to: cells.at(-1), kind: mirrored ? 'mirrored' : ''};
  });
  const near = isLrn ? new Set([...windowOf(variant, i, false), ...windowOf(variant, i, true)]) : null;
  const members = (at) => isLrn ? near.has(at) : ofParameter ? variant.param[at] === p : variant.sets[at] === variant.sets[i];
  for (const map of maps) {
    if (['gamma', 'beta', 'dgamma', 'dbeta'].includes(map.key)) map.show(p, (at) => at === p);
    else map.show(i, members, isLrn ? windows(map.grid) : []);
  }
  document.querySelectorAll('tr[data-set]').forEach((row) => row.classList.toggle('on', Number(row.dataset.set) === variant.sets[i]));
  panel.classList.add('open');
  inspect(panel, data.op, variant, key, i, unselect);
}

// ---- start --------------------------------------------------------------------------------------

const main = h('main', {});
pageTop(`gradus ${data.version} · how gradients of normalization work`, lesson.title, h('p', {}, lesson.lead), keepInAddress);
document.body.append(controlBar(data.controls, state, redraw), h('div', {class: 'columns wrap'}, main, panel));
pageEnd(data.source);
hint.push(h('h2', {}, 'Where does a number come from?'), h('p', {class: 'small'},
    'Point at a value in any map, or tab to a map and move with the arrow keys: here its formula appears with the numbers put in, and all that it depends on is marked. A click keeps it; Escape lets go.'),
  h('div', {class: 'legend'}, h('span', {}, 'negative', h('span', {class: 'scale'}), 'positive')));
followAddress();
