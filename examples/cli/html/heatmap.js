// Heat maps of tensors [n, c, ...]: one block per sample, a row per channel, a column per position;
// of [rows, d]: one block. All maps of a page show one selection: hovering or focusing a cell marks
// it, and what belongs to it, in all of them.
'use strict';

const kCell = 40, kGap = 16, kLeft = 30, kTop = 20;

// Where element i of a tensor lies.
class Grid {
  constructor(blocks, rows, columns, names = {}) {
    Object.assign(this, {blocks, rows, columns, names});
  }
  static of(shape, byRows) {
    if (byRows) {
      const d = shape.slice(1).reduce((a, b) => a * b, 1);
      return new Grid(1, shape[0], d, {row: 'n', column: ''});
    }
    const s = shape.slice(2).reduce((a, b) => a * b, 1);
    return new Grid(shape[0], shape[1], s, {block: 'n', row: 'c'});
  }
  get count() { return this.blocks * this.rows * this.columns; }
  get width() { return kLeft + this.blocks * this.columns * kCell + (this.blocks - 1) * kGap; }
  get height() { return (this.names.block ? kTop : 4) + this.rows * kCell; }
  place(i) {
    const column = i % this.columns, row = Math.floor(i / this.columns) % this.rows;
    return {block: Math.floor(i / this.columns / this.rows), row, column};
  }
  at(i) {
    const {block, row, column} = this.place(i);
    return {x: kLeft + block * (this.columns * kCell + kGap) + column * kCell,
            y: this.height - (this.rows - row) * kCell};
  }
  // The neighbour in the direction of an arrow key, or i at the edge.
  step(i, key) {
    const p = this.place(i);
    if (key === 'ArrowUp') return p.row > 0 ? i - this.columns : i;
    if (key === 'ArrowDown') return p.row < this.rows - 1 ? i + this.columns : i;
    const across = key === 'ArrowLeft' ? -1 : 1, column = p.column + across;
    if (column >= 0 && column < this.columns) return i + across;
    const block = p.block + across;
    if (block < 0 || block >= this.blocks) return i;
    return (block * this.rows + p.row) * this.columns + (across < 0 ? this.columns - 1 : 0);
  }
}

const maps = [];  // all on the page

// options: op, key, label, grid, values | hues, scale (largest magnitude; own by default), width (in
// units; the grid's by default), plain (no numbers in the cells), onselect(i, how): by hover, click or
// keys (by default element i of `op` is selected).
class HeatMap {
  constructor(options) {
    Object.assign(this, options);
    this.scale ??= largest(this.values || []);
    this.onselect ??= (i, how) => select(this.op, this.key, i, how);
    const width = this.width || this.grid.width;
    this.svg = h('div');  // parsed as markup, which needs no namespace
    this.svg.innerHTML = `<svg class="map${this.plain ? ' plain' : ''}" viewBox="0 0 ${width} ${this.grid.height + 3}" style="max-width:${1.6 * width}px" role="application"
      aria-roledescription="heat map" tabindex="0"></svg>`;
    this.svg = this.svg.firstChild;
    this.svg.setAttribute('aria-label', `${this.label}; arrow keys move from value to value`);
    this.svg.dataset.key = this.key;
    this.svg.innerHTML = this.labels() + this.cells() + '<g class="over"></g>';
    this.groups = [...this.svg.querySelectorAll('g.cells')];
    this.over = this.svg.querySelector('g.over');
    this.listen();
    maps.push(this);
  }
  labels() {
    const {grid} = this, parts = [];
    for (let row = 0; row < grid.rows && grid.names.row; ++row) {
      parts.push(`<text class="label" x="13" y="${grid.at(row * grid.columns).y + kCell / 2}">${
        grid.names.row}${sub(row)}</text>`);
    }
    for (let block = 0; block < grid.blocks && grid.names.block; ++block) {
      const {x} = grid.at(block * grid.rows * grid.columns);
      parts.push(`<text class="label" x="${x + grid.columns * kCell / 2}" y="9">${grid.names.block !== 'n' ? '' : grid.columns > 1 ? `sample ${block}` : 'n' + sub(block)}</text>`);
    }
    return parts.join('');
  }
  cells() {
    const parts = [];
    for (let i = 0; i < this.grid.count; ++i) {
      const {x, y} = this.grid.at(i), box = `class="cell CLASS" x="${x}" y="${y}" width="${kCell}" height="${kCell}"`;
      let cell;
      if (this.hues) {
        cell = `<rect ${box.replace('CLASS', 'set')} style="--h:${this.hues[i]}"/>`;
      } else {
        const value = this.values[i];
        const share = this.scale > 0 ? Math.min(1, Math.abs(value) / this.scale) : 0;
        const kind = Number.isFinite(value) ? (value < 0 ? 'neg' : 'pos') : 'nan';
        cell = `<rect ${box.replace('CLASS', kind)} style="--v:${share.toFixed(3)}"/>` +
          `<text x="${x + kCell / 2}" y="${y + kCell / 2}"${share > 0.62 && kind !== 'nan' ? ' class="strong"' : ''}>${
            brief(value, this.scale)}</text>`;
      }
      parts.push(`<g class="cells" data-i="${i}">${cell}</g>`);
    }
    return parts.join('');
  }
  listen() {
    const of = (event) => {
      const group = event.target.closest && event.target.closest('g.cells');
      return group ? Number(group.dataset.i) : -1;
    };
    this.svg.addEventListener('pointerover', (event) => {
      if (of(event) >= 0 && event.pointerType !== 'touch') this.onselect(of(event), 'hover');
    });
    this.svg.addEventListener('click', (event) => {
      if (of(event) >= 0) this.onselect(of(event), 'click');
    });
    this.svg.addEventListener('focus', () => {
      if (this.svg.matches(':focus-visible')) this.onselect(this.marked ?? 0, 'keys');
    });
    this.svg.addEventListener('keydown', (event) => {
      if (!event.key.startsWith('Arrow') || event.altKey || event.ctrlKey || event.metaKey) return;  // the browser's
      event.preventDefault();
      this.onselect(this.grid.step(this.marked ?? 0, event.key), 'keys');
    });
  }
  // Marks cell i (or none), and dims what is not in `members`, a function of the index.
  show(i, members, windows) {
    this.marked = i == null || i >= this.grid.count ? null : i;
    this.svg.classList.toggle('chosen', members != null);
    if (members) this.groups.forEach((group, at) => group.classList.toggle('in', members(at)));
    const boxes = (windows || []).map((w) => box(this.grid, w.from, w.to, 'window ' + w.kind));
    if (this.marked != null) boxes.push(box(this.grid, i, i, 'mark'));
    this.over.innerHTML = boxes.join('');
  }
}

// A frame around the cells from..to of one column or row.
function box(grid, from, to, kind) {
  const a = grid.at(from), b = grid.at(to), inset = kind.startsWith('window') ? -2 : 0;
  return `<rect class="${kind}" x="${a.x + inset}" y="${a.y + inset}" width="${b.x - a.x + kCell - 2 * inset}"
    height="${b.y - a.y + kCell - 2 * inset}"/>`;
}

const sub = (n) => String(n).replace(/\d/g, (d) => '₀₁₂₃₄₅₆₇₈₉'[d]);
const largest = (values) => values.reduce((most, v) => Number.isFinite(v) ? Math.max(most, Math.abs(v)) : most, 0);

// Hues for sets: neighbours far apart on the circle.
const hue = (set) => Math.round((210 + set * 137.508) % 360);

function figure(map, symbol, formula, why, sign) {
  return h('figure', {},
    h('figcaption', {}, sign == null ? null : h('span', {class: 'op', 'aria-hidden': 'true'}, sign), symbol, formula),
    map.svg, why ? h('p', {class: 'why'}, why) : null);
}
