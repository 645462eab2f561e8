// The report of `gradus compare`: data is its JSON (schema 1, nn/compare/report.h), the seed as text.
'use strict';

const devices = data.devices.map((device) => device.device);
const isGpu = (device) => device !== 'cpu';
const nameOf = (device) => isGpu(device) ? 'CUDA' : 'CPU';
const directions = ['forward', 'backward'];

// ---- what the table shows of a row --------------------------------------------------------------

const errorsOf = (row, device) => row.values.flatMap((value) => value.errors.filter((e) => e.device === device));
const worst = (list, key) => list.reduce((most, entry) => Math.max(most, entry[key] ?? Infinity), 0);
const timeOf = (row, device, direction) => row.times.find((t) => t.device === device && t.direction === direction);
const titleOf = (row) => [row.path, row.function && row.function !== row.layer ? `${row.layer}: ${row.function}` : row.layer].filter(Boolean).join(' · ');
const shapeOf = (shape) => shape.length ? shape.join('×') : 'scalar';
const histogramOf = (row, device) => errorsOf(row, device).reduce((sum, e) => e.histogram.map((n, k) => n + (sum[k] || 0)), []);

function duration(seconds) {
  if (seconds == null) return '–';
  for (const [unit, size] of [['s', 1], ['ms', 1e-3], ['µs', 1e-6], ['ns', 1e-9]]) {
    const text = (seconds / size).toPrecision(3);
    if (Number(text) >= 1 || unit === 'ns') return `${text} ${unit}`;
  }
}
const percent = (share) => share == null ? '–' : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

// Rows that are there for their times only have nothing to judge: the charts show them.
const judged = data.rows.map((row, index) => ({row, index})).filter(({row}) => row.values.length > 0);
const hasTimes = judged.some(({row}) => row.times.length > 0);

// Columns: key for the address, title, what is sorted, what is shown.
const columns = [
  {key: 'ok', title: '', of: (row) => row.ok ? 1 : 0, show: (row) => h('span', {class: row.ok ? 'good' : 'bad'}, row.ok ? '✓' : '✗ beyond')},
  {key: 'layer', title: 'layer', text: true, of: titleOf,
   show: (row) => [titleOf(row), row.case ? h('span', {class: 'case'}, row.case) : null]},
  {key: 'shape', title: 'shape', text: true, of: (row) => row.shape.reduce((a, b) => a * b, 1), show: (row) => shapeOf(row.shape)},
  {key: 'dtype', title: 'dtype', text: true, of: (row) => row.dtype, show: (row) => row.dtype},
  ...devices.flatMap((device) => [
    {key: `allowed-${device}`, title: `${nameOf(device)} of allowed`, of: (row) => worst(errorsOf(row, device), 'of_allowed'), show: (row) => gauge(worst(errorsOf(row, device), 'of_allowed'))},
    {key: `ulp-${device}`, title: `${nameOf(device)} largest ulp`, of: (row) => worst(errorsOf(row, device), 'max_ulp'), show: (row) => num(worst(errorsOf(row, device), 'max_ulp'), 3)},
    {key: `histogram-${device}`, title: `${nameOf(device)} errors`, show: (row) => spark(histogramOf(row, device))},
  ]),
  ...(hasTimes ? timeColumns() : []),
];

function timeColumns() {
  return [...devices.flatMap((device) => directions.map((direction) => (
    {key: `${direction}-${device}`, title: `${nameOf(device)} ${direction}`, of: (row) => timeOf(row, device, direction)?.seconds,
     show: (row) => h('span', {class: 'num'}, duration(timeOf(row, device, direction)?.seconds))}))),
  ...devices.map((device) => ({key: `share-${device}`, title: `${nameOf(device)} of roof`, of: (row) => shareOf(row, device),
    show: (row) => h('span', {class: 'num'}, percent(shareOf(row, device)))}))];
}

// The smaller share of the two directions.
function shareOf(row, device) {
  const shares = row.times.filter((t) => t.device === device && t.share != null).map((t) => t.share);
  return shares.length ? Math.min(...shares) : undefined;
}

// ---- small drawings -----------------------------------------------------------------------------

function gauge(share) {
  const bar = h('span', {class: 'gauge' + (share > 1 ? ' over' : '')}, h('span', {style: `width:${Math.min(100, share * 100).toFixed(1)}%`}));
  return h('span', {class: 'with-gauge'}, num(share, 3), bar);
}

const svg = (markup, attributes) => {
  const holder = h('div');
  holder.innerHTML = `<svg ${attributes}>${markup}</svg>`;
  return holder.firstChild;
};

// Bins of a histogram as bars, on a scale of logarithms so that one value among millions is seen.
function bars(histogram, width, height) {
  const most = Math.log1p(Math.max(1, ...histogram)), step = width / histogram.length;
  return histogram.map((count, k) => {
    if (count === 0) return '';
    const tall = Math.max(2, height * Math.log1p(count) / most);
    return `<rect class="bin${data.ulp_edges[k] == null || data.ulp_edges[k] > 16 ? ' far' : ''}" x="${(k * step).toFixed(2)}" y="${(height - tall).toFixed(2)}" width="${(step - 1).toFixed(2)}" height="${tall.toFixed(2)}"><title>${binName(k)}: ${count} values</title></rect>`;
  }).join('');
}
function binName(k) {
  const edges = data.ulp_edges;
  if (k === 0) return 'exact';
  return edges[k] == null ? `beyond ${edges[k - 1]} ulp, or not finite` : `up to ${edges[k]} ulp`;
}
const spark = (histogram) => svg(bars(histogram, 92, 22), 'class="spark" viewBox="0 0 92 22" role="img" aria-label="histogram of errors"');

function histogramFigure(histogram, title) {
  const width = 460, height = 110, step = width / histogram.length;
  const ticks = histogram.map((_, k) => k % 4 !== 0 ? '' : `<text class="label" x="${(k + .5) * step}" y="${height + 14}">${
    k === 0 ? 'exact' : data.ulp_edges[k] == null ? '∞' : powerOfTwo(data.ulp_edges[k])}</text>`).join('');
  return h('figure', {}, h('figcaption', {}, h('b', {}, title)),
    svg(bars(histogram, width, height) + ticks, `class="chart" viewBox="-20 -6 ${width + 40} ${height + 26}" role="img" aria-label="${title}: histogram of errors in ulp"`));
}
const powerOfTwo = (value) => value >= 1 ? String(value) : `1/${1 / value}`;

const counted = (rows) => rows === 1 ? '1 row' : `${rows} rows`;

// ---- the table ----------------------------------------------------------------------------------

const view = {};  // sort, down, find, dtype
let openRow = null;

function sorted() {
  const column = columns.find((c) => c.key === view.sort && c.of) || columns[0];
  const known = (value) => value != null && !Number.isNaN(value);
  return judged
    .filter(({row}) => (!view.dtype || row.dtype === view.dtype) && `${titleOf(row)} ${row.case} ${row.dtype}`.toLowerCase().includes(view.find.toLowerCase()))
    .sort((a, b) => {
      const x = column.of(a.row), y = column.of(b.row);
      if (!known(x) || !known(y)) return known(x) ? -1 : known(y) ? 1 : a.index - b.index;  // unknown last
      const order = typeof x === 'string' ? x.localeCompare(y) : x - y;
      return (view.down ? -order : order) || a.index - b.index;
    });
}

function headCell(column) {
  if (!column.of) return h('th', {}, column.title);
  const on = view.sort === column.key;
  return h('th', {class: column.text ? 'text' : '', 'aria-sort': on ? (view.down ? 'descending' : 'ascending') : 'none'},
    h('button', {type: 'button', class: 'sort', 'data-sort': column.key, onclick() {
      view.down = on ? !view.down : !column.text && column.key !== 'ok';
      view.sort = column.key;
      drawTable();
      table.querySelector(`button[data-sort="${column.key}"]`).focus();
    }}, column.title || 'verdict', h('span', {class: 'arrow', 'aria-hidden': 'true'}, on ? (view.down ? '▾' : '▴') : '')));
}

const keepInAddress = () => address.write({sort: view.sort, down: view.down || null, find: view.find, dtype: view.dtype, row: openRow, theme: chosenTheme});

function drawTable() {
  const rows = sorted();
  table.replaceChildren(h('thead', {}, h('tr', {}, columns.map(headCell))), h('tbody', {}, rows.map(({row, index}) =>
    h('tr', {'data-row': index, tabindex: 0, class: (row.ok ? '' : 'wrong') + (openRow === index ? ' on' : ''),
      onclick: () => open(index), onkeydown: (event) => {
        if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); open(index); }
        if (event.key === 'ArrowDown') { event.preventDefault(); event.currentTarget.nextSibling?.focus(); }
        if (event.key === 'ArrowUp') { event.preventDefault(); event.currentTarget.previousSibling?.focus(); }
      }}, columns.map((column) => h('td', {class: column.text ? 'text' : ''}, column.show(row)))))));
  count.textContent = rows.length === judged.length ? counted(judged.length) : `${rows.length} of ${counted(judged.length)}`;
  keepInAddress();
  document.documentElement.dataset.order = rows.map(({index}) => index).join(',');
}

// ---- the details of one row ---------------------------------------------------------------------

function open(index) {
  openRow = openRow === index ? null : index;
  table.querySelectorAll('tr[data-row]').forEach((tr) => tr.classList.toggle('on', Number(tr.dataset.row) === openRow));
  drawDetails();
  keepInAddress();
  if (openRow != null) details.scrollIntoView({block: 'nearest'});
}

function drawDetails() {
  if (openRow == null) {
    details.replaceChildren(h('p', {class: 'soft'}, 'Choose a row of the table, by a click or with Enter: its values, errors and worst elements appear here.'));
    return;
  }
  const row = data.rows[openRow];
  const head = h('h2', {}, titleOf(row), ' ', h('span', {class: 'soft'}, `${row.dtype} ${shapeOf(row.shape)}${row.case ? ', case ' + row.case : ''}`));
  const times = row.times.map((t) => h('p', {class: 'num says'}, describe({row, t})));
  if (row.values.length === 0) return details.replaceChildren(head, ...times);
  details.replaceChildren(head,
    h('p', {class: 'small soft'}, `The longest sum behind any value has ${row.reduction} terms, which the tolerances come from. All errors are against ${data.reference}.`),
    h('div', {class: 'scroll'}, h('table', {}, h('thead', {}, h('tr', {}, ['value', 'device', 'error, of allowed', 'ulp, largest', 'ulp, mean', 'relative, largest', 'beyond', 'worst at', ...devices, 'reference'].map((title, k) =>
      h('th', {class: k < 2 ? 'text' : ''}, title)))), h('tbody', {}, row.values.flatMap(valueRows)))),
    differencesTable(row) ?? '',
    ...times,
    h('div', {class: 'maps charts'}, devices.map((device) => histogramFigure(histogramOf(row, device), `${nameOf(device)}: errors in ulp, all values`))));
}

function valueRows(value) {
  return value.errors.map((error) => h('tr', {class: error.ok ? '' : 'wrong'},
    h('td', {class: 'text'}, m(`${value.direction === 'forward' ? '→' : '←'} `), value.name), h('td', {class: 'text'}, error.device),
    h('td', {}, gauge(error.of_allowed ?? Infinity)), h('td', {}, num(error.max_ulp, 3)), h('td', {}, num(error.mean_ulp, 3)), h('td', {}, num(error.max_relative, 3)),
    h('td', {class: error.beyond > 0 ? 'bad num' : 'num'}, String(error.beyond)),
    h('td', {class: 'num'}, error.worst ? `[${error.worst.index.join(', ')}]` : 'all exact'),
    ...[...devices, 'reference'].map((name) => h('td', {class: 'num'}, error.worst ? show(error.worst[name]) : ''))));
}
const show = (value) => value == null ? 'not finite' : Number(value.toPrecision(9)).toString().replace(/-/g, '−');

function differencesTable(row) {
  const rows = row.values.filter((value) => value.differences).map(({name, differences: d}) => h('tr', {class: d.ok ? '' : 'wrong'},
    h('td', {class: 'text'}, name), h('td', {class: 'num'}, show(d.got)), h('td', {class: 'num'}, show(d.want)), h('td', {}, num(d.error, 3)), h('td', {}, num(d.allowed, 3)),
    h('td', {class: 'text ' + (d.ok ? 'good' : 'bad')}, !d.has_power ? 'too near 0 to tell' : d.ok ? '✓ holds' : '✗ fails')));
  return rows.length === 0 ? null : h('div', {class: 'scroll'}, h('table', {}, h('caption', {class: 'small soft'}, 'Gradients in f64 along one direction, beside finite differences of the forward'),
    h('thead', {}, h('tr', {}, ['gradient of', 'by backward', 'measured', 'difference', 'allowed', ''].map((title) => h('th', {class: 'text'}, title)))), h('tbody', {}, rows)));
}

// ---- the page -----------------------------------------------------------------------------------

const table = h('table', {class: 'rows'}), details = h('section', {class: 'details', 'aria-live': 'polite'}), count = h('span', {class: 'soft small'});
const wrong = judged.filter(({row}) => !row.ok).length;
const verdict = data.ok ? (data.train ? `✓ ${data.train.steps_done} steps, every layer within tolerance` : `✓ ${counted(judged.length)}, all within tolerance`)
  : wrong > 0 ? `✗ ${wrong} of ${counted(judged.length)} beyond tolerance` : data.train?.parted ? '✗ beyond tolerance' : '✗ the training diverged';
const subject = {layers: 'each layer by itself', model: `the layers inside ${data.model}`, train: `lock-step training of ${data.model}`}[data.what];

pageTop(`gradus ${data.version} · compare: ${subject}, seed ${data.seed}`, devices.length > 1 ? 'CPU and CUDA, layer by layer' : 'The CPU against f64, layer by layer',
  h('div', {}, h('p', {class: 'verdict ' + (data.ok ? 'good' : 'bad')}, verdict),
    data.missing.map((sentence) => h('p', {class: 'missing'}, sentence)),
    h('p', {class: 'soft small'}, data.tolerance == null ? 'Tolerances come from the length of the sums and the dtype of each value.' : `Tolerance: ${data.tolerance}.`)),
  keepInAddress);

const dtypes = [...new Set(data.rows.map((row) => row.dtype))];
const filter = h('input', {type: 'search', placeholder: 'find a layer', 'aria-label': 'find a layer', oninput() { view.find = filter.value; drawTable(); }});
const dtypeChoice = h('select', {'aria-label': 'dtype', onchange() { view.dtype = dtypeChoice.value; drawTable(); }},
  h('option', {value: ''}, 'all dtypes'), dtypes.map((name) => h('option', {value: name}, name)));
const main = h('main', {},
  trainSection(),
  h('section', {}, h('h2', {}, data.what === 'train' ? 'The layers at the last step' : hasTimes ? 'Errors and times' : 'Errors'),
    h('div', {class: 'tools'}, filter, dtypes.length > 1 ? dtypeChoice : null, count),
    h('div', {class: 'scroll tall'}, table)),
  details, timeSection(), roofSection());
document.body.append(main);
const speeds = (device) => device.copy_gb_per_s > 0 ? `; a large copy moves ${number(device.copy_gb_per_s, 3)} GB/s${
  Object.entries(device.tflop_per_s).map(([dtype, speed]) => `, ${dtype} products ${number(speed, 3)} TFLOP/s`).join('')}` : '';
pageEnd(...data.devices.map((device) => device.text + speeds(device)),
  ...(hasTimes ? ['Times are medians; the share of the roof is the least time that bytes and operations allow, divided by the time measured.'] : []));
function followAddress() {
  const {sort = 'ok', down, find = '', dtype, row} = address.read();
  Object.assign(view, {sort, down: down === 'true', find, dtype: dtypes.includes(dtype) ? dtype : ''});
  filter.value = view.find;
  dtypeChoice.value = view.dtype;
  openRow = data.rows[Number(row)] ? Number(row) : null;
  drawDetails();
  drawTable();
}
addEventListener('hashchange', followAddress);
followAddress();
