// Where a number came from: each formula with the numbers of the selected element put into it.
'use strict';

const n4 = (value) => number(value);
const inBrackets = (value) => value < 0 ? `(${n4(value)})` : n4(value);

// 0.3 + 1.2 − 0.7 ..., the middle left out where there are many.
function sumOf(values) {
  const parts = values.map((value, i) => {
    const text = number(Math.abs(value), 3);
    return i === 0 ? (value < 0 ? '−' : '') + text : (value < 0 ? ' − ' : ' + ') + text;
  });
  return parts.length <= 12 ? parts.join('') : parts.slice(0, 6).join('') + ' … ' + parts.at(-1).trim();
}

const pick = (values, where) => where.map((i) => values[i]);
const indices = (count, holds) => Array.from({length: count}, (_, i) => i).filter(holds);

// Lines of the inspector: [key, symbol, formula with numbers, result]; null is a rule between parts.
function normLines(variant, i) {
  const t = variant.t, set = variant.set[variant.sets[i]], p = variant.param[i];
  const gamma = variant.gamma[p], rms = set.mean == null, evaluation = variant.mode === 'eval';
  const members = indices(t.x.length, (at) => variant.sets[at] === variant.sets[i]);
  const xs = pick(t.x, members);
  const lines = [], eps = String(variant.eps).replace('-', '−');
  if (evaluation) {
    lines.push(['mu', '<i>μ</i>', 'running_mean, a constant here', set.mean]);
    lines.push(['rstd', 'rstd', `1/√(running_var + ε) = 1/√(${n4(set.var)} + ${eps})`, set.rstd]);
  } else {
    if (!rms) lines.push(['mu', '<i>μ</i>', `Σ<i>x</i>/<i>m</i> = (${sumOf(xs)})/${set.m}`, set.mean]);
    lines.push(['var', 'var', rms
      ? `mean square: Σ<i>x</i>²/<i>m</i> = (${sumOf(xs.map((x) => x * x))})/${set.m}`
      : `Σ(<i>x</i> − <i>μ</i>)²/<i>m</i> = (${sumOf(xs.map((x) => (x - set.mean) ** 2))})/${set.m}`, set.var]);
    lines.push(['rstd', 'rstd', `1/√(var + ε) = 1/√(${n4(set.var)} + ${eps})`, set.rstd]);
  }
  lines.push(['xhat', kSymbols.xhat, rms ? `<i>x</i>·rstd = ${inBrackets(t.x[i])}·${n4(set.rstd)}`
    : `(<i>x</i> − <i>μ</i>)·rstd = (${n4(t.x[i])} − ${inBrackets(set.mean)})·${n4(set.rstd)}`, t.xhat[i]]);
  const beta = variant.beta ? variant.beta[p] : null;
  lines.push(['y', kSymbols.y, beta == null ? `<i>γ</i>·<i>x̂</i> = ${n4(gamma)}·${inBrackets(t.xhat[i])}`
    : `<i>γ</i>·<i>x̂</i> + <i>β</i> = ${n4(gamma)}·${inBrackets(t.xhat[i])} + ${inBrackets(beta)}`, t.y[i]]);
  lines.push(null);
  lines.push(['d', kSymbols.d, `<i>dy</i>·<i>γ</i> = ${inBrackets(t.dy[i])}·${inBrackets(gamma)}`, t.d[i]]);
  if (!evaluation) {
    if (!rms) lines.push(['m1', '<i>m</i>₁', `Σ<i>d</i>/<i>m</i> = (${sumOf(pick(t.d, members))})/${set.m}`, set.m1]);
    lines.push(['m2', '<i>m</i>₂', `Σ<i>d</i>·<i>x̂</i>/<i>m</i> = (${
      sumOf(members.map((at) => t.d[at] * t.xhat[at]))})/${set.m}`, set.m2]);
  }
  lines.push(['direct', kSymbols.direct, `rstd·<i>d</i> = ${n4(set.rstd)}·${inBrackets(t.d[i])}`, t.direct[i]]);
  if (!evaluation) {
    if (!rms) lines.push(['mean', kSymbols.mean, `−rstd·<i>m</i>₁ = −${n4(set.rstd)}·${inBrackets(set.m1)}`, t.mean[i]]);
    lines.push(['projection', kSymbols.projection, `−rstd·<i>x̂</i>·<i>m</i>₂ = −${n4(set.rstd)}·${
      inBrackets(t.xhat[i])}·${inBrackets(set.m2)}`, t.projection[i]]);
  }
  const terms = evaluation ? [t.direct[i]] : rms ? [t.direct[i], t.projection[i]]
    : [t.direct[i], t.mean[i], t.projection[i]];
  lines.push(['dx', kSymbols.dx, terms.map((term, k) => k === 0 ? n4(term) : (term < 0 ? '− ' : '+ ') + n4(Math.abs(term))).join(' '), t.dx[i]]);
  lines.push(['fd', 'measured', 'finite difference of the loss', t.fd[i]]);
  lines.push(null);
  const shared = indices(t.x.length, (at) => variant.param[at] === p);
  lines.push(['dgamma', kSymbols.dgamma, `Σ<i>dy</i>·<i>x̂</i> over the ${shared.length} values of this γ = ${
    sumOf(shared.map((at) => t.dy[at] * t.xhat[at]))}`, variant.dgamma[p]]);
  if (variant.dbeta) {
    lines.push(['dbeta', kSymbols.dbeta, `Σ<i>dy</i> over the same = ${sumOf(pick(t.dy, shared))}`, variant.dbeta[p]]);
  }
  return lines;
}

function lrnLines(variant, i) {
  const t = variant.t, w = variant.window, a = `${n4(w.alpha)}/${w.size}`;
  const forward = windowOf(variant, i, false), mirrored = windowOf(variant, i, true);
  return [
    ['denom', 'denom', `<i>k</i> + α/size·Σ<i>x</i>² = ${n4(w.k)} + ${a}·(${
      sumOf(pick(t.x, forward).map((x) => x * x))})`, t.denom[i]],
    ['y', kSymbols.y, `<i>x</i>·denom<sup>−β</sup> = ${inBrackets(t.x[i])}·${n4(t.denom[i])}<sup>−${w.beta}</sup>`, t.y[i]],
    null,
    ['direct', kSymbols.direct, `<i>dy</i>·denom<sup>−β</sup> = ${inBrackets(t.dy[i])}·${n4(t.denom[i])}<sup>−${w.beta}</sup>`, t.direct[i]],
    ['t', kSymbols.t, `direct·<i>x</i>/denom = ${inBrackets(t.direct[i])}·${inBrackets(t.x[i])}/${n4(t.denom[i])}`, t.t[i]],
    ['neighbours', kSymbols.neighbours, `−2β·α/size·<i>x</i>·Σ<i>t</i> = −2·${w.beta}·${a}·${inBrackets(t.x[i])}·(${
      sumOf(pick(t.t, mirrored))})`, t.neighbours[i]],
    ['dx', kSymbols.dx, `${n4(t.direct[i])} ${t.neighbours[i] < 0 ? '−' : '+'} ${n4(Math.abs(t.neighbours[i]))}`, t.dx[i]],
    ['fd', 'measured', 'finite difference of the loss', t.fd[i]],
  ];
}

function softmaxLines(variant, i) {
  const t = variant.t, set = variant.set[variant.sets[i]];
  const members = indices(t.x.length, (at) => variant.sets[at] === variant.sets[i]);
  return [
    ['max', 'max <i>x</i>', 'over the channels: taken away so that exp cannot overflow', set.max],
    ['total', 'total', `Σexp(<i>x</i> − max) = ${sumOf(members.map((at) => Math.exp(t.x[at] - set.max)))}`, set.total],
    ['y', kSymbols.y, `exp(${n4(t.x[i])} − ${inBrackets(set.max)})/${n4(set.total)}`, t.y[i]],
    null,
    ['s', '<i>s</i>', `Σ<i>dy</i>·<i>y</i> = ${sumOf(members.map((at) => t.dy[at] * t.y[at]))}`, set.s],
    ['direct', kSymbols.direct, `<i>y</i>·<i>dy</i> = ${n4(t.y[i])}·${inBrackets(t.dy[i])}`, t.direct[i]],
    ['shift', kSymbols.shift, `−<i>y</i>·<i>s</i> = −${n4(t.y[i])}·${inBrackets(set.s)}`, t.shift[i]],
    ['dx', kSymbols.dx, `${n4(t.direct[i])} ${t.shift[i] < 0 ? '−' : '+'} ${n4(Math.abs(t.shift[i]))}`, t.dx[i]],
    ['fd', 'measured', 'finite difference of the loss', t.fd[i]],
  ];
}

// The elements of the window of element i along the channels; mirrored: those whose windows hold i.
function windowOf(variant, i, mirrored) {
  const [, c, ...rest] = variant.shape, s = rest.reduce((a, b) => a * b, 1), w = variant.window;
  const channel = Math.floor(i / s) % c;
  const below = mirrored ? w.after : w.before, above = mirrored ? w.before : w.after;
  return indices(c, (at) => at >= channel - below && at <= channel + above)
      .map((at) => i + (at - channel) * s);
}

function linesOf(op, variant, i) {
  if (op === 'local_response_norm') return lrnLines(variant, i);
  if (op === 'softmax2d') return softmaxLines(variant, i);
  return normLines(variant, i);
}

// Fills the panel for element i, with the line of `key` marked.
function inspect(panel, op, variant, key, i, close) {
  const place = op === 'local_response_norm'
    ? `window of channels around it: ${variant.window.before} below, ${variant.window.after} above`
    : `set ${variant.sets[i] + 1} of ${variant.set.length}: ${setName(op, variant, variant.sets[i])}, m = ${variant.set[variant.sets[i]].m}`;
  const rows = linesOf(op, variant, i).map((line) => line === null ? h('div', {class: 'rule'})
    : h('div', {class: line[0] === key ? 'on' : ''},
        h('dt', {class: 'math ' + (kTermKind[line[0]] || '')}, m(line[1])),
        h('dd', {}, h('span', {class: 'steps math'}, m(line[2] + ' = ')), num(line[3], 5))));
  panel.replaceChildren(
    h('button', {type: 'button', class: 'close', onclick: close}, 'close'),
    h('h2', {}, m(`<i>x</i>[${indexOf(variant.shape, i)}]`), ' = ', num(variant.t.x[i], 5)),
    h('p', {class: 'small soft'}, place), h('dl', {class: 'lines'}, rows));
}
