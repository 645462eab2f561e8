// What a page of heat maps shows: the positions of its controls and the element that is chosen. Both
// follow the address, and are kept in it. The page itself has
//   variantOf(op)  the numbers of a layer at these positions; undefined where there is no such layer
//   draw()         its maps, drawn anew
//   show()         the chosen element marked, and its formulas in the panel
'use strict';

const state = {...data.start};
let selected = null;  // {op, key, i, how: 'hover' or 'pin'}
const hint = [];      // what the panel says while nothing is chosen
const panel = h('aside', {class: 'inspector', 'aria-live': 'polite', 'aria-label': 'Where a number comes from'});

function keepInAddress() {
  const pinned = selected?.how === 'pin' ? selected : {};
  address.write({...state, layer: data.op ? null : pinned.op, cell: pinned.i, of: pinned.key, theme: chosenTheme});
}

function select(op, key, i, how) {
  const pinned = selected?.how === 'pin';
  if (how === 'hover' && pinned) return;
  if (how === 'click' && pinned && selected.op === op && selected.key === key && selected.i === i) return unselect();
  selected = {op, key, i, how: how === 'hover' ? how : 'pin'};
  show();
  keepInAddress();
}

function unselect() {
  selected = null;
  maps.forEach((map) => map.show(null, null));
  document.querySelectorAll('tr.on').forEach((row) => row.classList.remove('on'));
  panel.classList.remove('open');
  panel.replaceChildren(...hint);
  keepInAddress();
}

function redraw() {
  maps.length = 0;
  document.documentElement.dataset.state = data.controls.map((c) => `${c.key}=${state[c.key]}`).join('&');
  draw();
  data.controls.forEach((control) => control.update());
  if (selected && variantOf(selected.op)?.t.x[selected.i] !== undefined) show();
  else unselect();  // the address may name what is not there
  keepInAddress();
}

function followAddress() {
  Object.assign(state, statedIn(data.controls));
  const {layer, cell, of = 'dx'} = address.read();
  selected = cell ? {op: data.op || layer, key: of, i: Number(cell), how: 'pin'} : null;
  redraw();
}

addEventListener('keydown', (event) => { if (event.key === 'Escape') unselect(); });
addEventListener('hashchange', followAddress);
