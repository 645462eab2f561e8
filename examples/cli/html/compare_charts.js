// The charts of the comparison report: time bars, roofline, and what lock-step training found.
'use strict';

const gpuClass = (device) => device === 'cpu' ? 'cpu' : 'gpu';
const kDirectionSigns = {forward: '→', backward: '←'};
const timed = () => data.rows.map((row, index) => ({row, index})).filter(({row}) => row.times.length > 0);

function legendOf() {
  return h('div', {class: 'legend'}, data.devices.map(({device}) => h('span', {}, h('span', {class: 'swatch ' + gpuClass(device)}), nameOf(device))),
    h('span', {}, '→ forward, ← backward'));
}

// Bars on a scale of logarithms: the layers are orders of magnitude apart.
function timeSection() {
  const rows = timed();
  if (rows.length === 0) return null;
  const all = rows.flatMap(({row}) => row.times.map((t) => t.seconds)).filter((s) => s > 0);
  const low = Math.floor(Math.log10(Math.min(...all))), high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...all))));
  const share = (seconds) => 100 * (Math.log10(seconds) - low) / (high - low);
  const ticks = Array.from({length: high - low + 1}, (_, k) => h('span', {style: `left:${100 * k / (high - low)}%`}, duration(1.0001 * 10 ** (low + k)).replace(/\.0+/, '')));
  return h('section', {}, h('h2', {}, 'Time'), legendOf(),
    h('p', {class: 'small soft'}, 'The scale is logarithmic: from one line to the next it is ten times as long. In %: the least time that the roofs below allow, of the time it took; above 100 % operands came from a cache.'),
    h('div', {class: 'times'}, h('div', {class: 'axis'}, ticks), rows.map(({row, index}) => timeRow(row, index, share, high - low))));
}

function timeRow(row, index, share, decades) {
  const bars = directions.flatMap((direction) => data.devices.map(({device}) => {
    const t = timeOf(row, device, direction);
    if (!t) return null;
    return h('div', {class: 'time'}, h('span', {class: 'way'}, kDirectionSigns[direction]),
      h('span', {class: 'track'}, h('span', {class: 'bar-of ' + gpuClass(device), style: `width:${Math.max(0.5, share(t.seconds)).toFixed(2)}%`})),
      h('span', {class: 'num'}, duration(t.seconds), ' ', h('span', {class: 'soft'}, percent(t.share))));
  }));
  return h('div', {class: 'time-row', style: `--decades:${decades}`}, h('button', {type: 'button', class: 'plain', onclick: () => open(index)},
    titleOf(row), h('span', {class: 'soft small'}, ` ${row.dtype}${row.case ? ' ' + row.case : ''}`)), h('div', {}, bars));
}

// ---- roofline: operations per second over operations per byte, both logarithmic -----------------

// What hardly computes at all, as a sum's gradient, would stretch the chart by decades for nothing.
const kLeastIntensity = .01;

function roofSection() {
  const points = timed().flatMap(({row, index}) => row.times.filter((t) => t.bytes > 0 && t.flops >= kLeastIntensity * t.bytes && t.seconds > 0)
    .map((t) => ({row, index, t, x: Math.log10(t.flops / t.bytes), y: Math.log10(t.flops / t.seconds / 1e9)})));
  if (points.length === 0) return null;
  const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
  const roofs = data.devices.flatMap((device) => Object.entries(device.tflop_per_s).map(([dtype, speed]) => ({device: device.device, dtype, top: Math.log10(speed * 1e3), slope: Math.log10(device.copy_gb_per_s)})))
    .filter((roof) => Number.isFinite(roof.top) && Number.isFinite(roof.slope));
  const x0 = Math.floor(Math.min(-1, ...xs)), x1 = Math.ceil(Math.max(2, ...xs, ...roofs.map((r) => r.top - r.slope + .3)));
  const y0 = Math.floor(Math.min(...ys)), y1 = Math.ceil(Math.max(...ys, ...roofs.map((r) => r.top)));
  const w = 1000, tall = 460, X = (x) => (x - x0) / (x1 - x0) * w, Y = (y) => tall - (y - y0) / (y1 - y0) * tall;
  const grid = [...ticksOf(x0, x1).map((x) => `<line class="grid" x1="${X(x)}" x2="${X(x)}" y1="0" y2="${tall}"/><text class="label" x="${X(x)}" y="${tall + 18}">${power(x)}</text>`),
    ...ticksOf(y0, y1).map((y) => `<line class="grid" x1="0" x2="${w}" y1="${Y(y)}" y2="${Y(y)}"/><text class="label left" x="-8" y="${Y(y)}">${power(y)}</text>`)].join('');
  // Roofs that lie on each other have one label.
  const beside = (roof) => roofs.filter((r) => r.device === roof.device && Math.abs(r.top - roof.top) < .12);
  const highest = (list) => list.reduce((a, b) => b.top > a.top ? b : a);
  const labels = roofs.map((roof) => highest(beside(roof)) === roof ? beside(roof).map((r) => r.dtype).join(', ') : null);
  const lines = roofs.map((roof, k) => roofLine(roof, labels[k], x0, x1, y0, X, Y)).join('');
  const dots = points.map((p, k) => `<circle class="dot ${gpuClass(p.t.device)} ${p.t.direction}" data-k="${k}" tabindex="0" cx="${X(p.x).toFixed(1)}" cy="${Y(p.y).toFixed(1)}" r="6"><title>${nameOf(p.t.device)} ${p.t.direction}</title></circle>`).join('');
  const chart = svg(`${grid}${lines}${dots}<text class="label" x="${w / 2}" y="${tall + 42}">operations per byte</text><text class="label" x="0" y="-14" style="text-anchor:start">GFLOP/s</text>`,
    `class="chart roof" viewBox="-70 -30 ${w + 90} ${tall + 84}" role="group" aria-label="Roofline: speed of each layer over its operations per byte"`);
  const says = h('p', {class: 'num says', 'aria-live': 'polite'}, 'Point at a dot, or tab to it.');
  chart.querySelectorAll('circle').forEach((dot) => {
    const p = points[Number(dot.dataset.k)];
    dot.querySelector('title').textContent = describe(p);
    for (const event of ['pointerover', 'focus']) dot.addEventListener(event, () => { says.textContent = describe(p); });
    dot.addEventListener('click', () => open(p.index));
    dot.addEventListener('keydown', (event) => { if (event.key === 'Enter') open(p.index); });
  });
  return h('section', {}, h('h2', {}, 'Roofline'), legendOf(),
    h('p', {class: 'small soft'}, 'Slanted: the speed of a large copy; flat: that of a large matrix product; both measured here. A dot on a line is as fast as the machine allows. Filled: forward; ring: backward. What only moves data is in the bars above.'),
    says, h('div', {class: 'scroll'}, chart));
}

const describe = ({row, t}) => `${titleOf(row)} ${row.dtype} ${t.direction} on ${t.device}: ${duration(t.seconds)}, ${number(t.gb_per_s, 3)} GB/s, ${number(t.tflop_per_s, 3)} TFLOP/s, ${percent(t.share)} of the ${t.roof === 'copy' ? 'copy' : 'product'} roof`;
const ticksOf = (from, to) => Array.from({length: to - from + 1}, (_, k) => from + k);
const power = (k) => k >= -2 && k <= 3 ? String(Number((10 ** k).toPrecision(1))) : '10' + String(k).replace(/[-\d]/g, (c) => c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[c]);

function roofLine(roof, dtypes, x0, x1, y0, X, Y) {
  const knee = roof.top - roof.slope, from = Math.max(x0, y0 - roof.slope);
  const points = [[from, from + roof.slope], [Math.min(knee, x1), Math.min(knee, x1) + roof.slope], ...(knee < x1 ? [[x1, roof.top]] : [])];
  const label = dtypes && knee < x1 ? `<text class="label end ${gpuClass(roof.device)}" x="${X(x1) - 4}" y="${Y(roof.top) - 10}">${nameOf(roof.device)} ${dtypes}</text>` : '';
  return `<polyline class="roof-line ${gpuClass(roof.device)}" points="${points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(' ')}"/>${label}`;
}

// ---- lock-step training -------------------------------------------------------------------------

function trainSection() {
  const train = data.train;
  if (!train) return null;
  const p = train.parted;
  return h('section', {}, h('h2', {}, 'Lock-step training'),
    h('p', {}, `${train.steps_done} of ${train.steps_asked} steps with batches of ${train.batch_size}, ${train.optimizer}. ${devices.length > 1 ? "At each step and layer CUDA starts from the CPU's bits." : "At each step and layer the CPU's f64 starts from the bits of its f32."}`),
    h('p', {class: data.ok ? 'good' : 'bad'}, p ? `Parted at step ${p.step}, ${p.path} ${p.layer}, ${p.direction}: ${p.value}[${p.index.join(', ')}] on ${p.device} is ${show(p[p.device])}, on the CPU ${show(p.cpu)}, by the reference ${show(p.reference)}; ${number(p.error, 3)} off, ${number(p.allowed, 3)} allowed.`
      : data.ok ? 'No value of any layer left its tolerance.' : 'The training diverged after them: its values say nothing of the layers any more.'),
    h('div', {class: 'maps charts'}, h('figure', {}, h('figcaption', {}, h('b', {}, 'Worst of all steps, of allowed')), h('div', {class: 'scroll'}, h('table', {}, h('tbody', {}, train.layers.map((layer) =>
      h('tr', {class: layer.of_allowed > 1 ? 'wrong' : ''}, h('td', {class: 'text'}, `${layer.path} ${layer.layer}`), h('td', {class: 'text'}, layer.direction), h('td', {}, gauge(layer.of_allowed)), h('td', {class: 'num'}, `step ${layer.step}`))))))),
      train.drift && train.drift.steps.length > 1 ? driftFigure(train.drift) : null));
}

// The free run's parameters beside the CPU's: rounding alone lets them part.
function driftFigure(drift) {
  const steps = drift.steps.filter((s) => s.parameters > 0), w = 460, tall = 200;
  if (steps.length < 2) return null;
  const ys = steps.map((s) => Math.log10(s.parameters)), y0 = Math.floor(Math.min(...ys)), y1 = Math.max(y0 + 1, Math.ceil(Math.max(...ys)));
  const last = steps.at(-1).step, X = (step) => step / last * w, Y = (y) => tall - (y - y0) / (y1 - y0) * tall;
  const grid = ticksOf(y0, y1).map((y) => `<line class="grid" x1="0" x2="${w}" y1="${Y(y)}" y2="${Y(y)}"/><text class="label left" x="-6" y="${Y(y)}">${power(y)}</text>`).join('');
  const line = `<polyline class="roof-line gpu" points="${steps.map((s, k) => `${X(s.step).toFixed(1)},${Y(ys[k]).toFixed(1)}`).join(' ')}"/>`;
  return h('figure', {}, h('figcaption', {}, h('b', {}, 'A free run beside it: |difference| / |parameters|')),
    svg(`${grid}${line}<text class="label" x="${w}" y="${tall + 18}">step ${last}</text>`, `class="chart" viewBox="-44 -8 ${w + 70} ${tall + 32}" role="img" aria-label="Drift of the parameters"`),
    h('p', {class: 'why'}, `${drift.dtype} on ${drift.device}; without verdict, since rounding alone flips the ties of ReLU and pooling.`));
}
