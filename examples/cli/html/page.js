// What every page shares: its data, elements, numbers, the theme and the state in the address.
'use strict';

// JSON has no infinities and no NaN: they come as these words.
const kNotFinite = new Map([['inf', Infinity], ['-inf', -Infinity], ['nan', NaN]]);
const data = JSON.parse(document.getElementById('data').textContent, (_, value) => kNotFinite.get(value) ?? value);

// Errors are shown, not only logged: a page of numbers that stopped half way must say so.
addEventListener('error', (event) => {
  document.documentElement.dataset.error = event.message;
  document.body.prepend(h('p', {class: 'bad'}, 'This page stopped: ' + event.message));
});

// h('p', {class: 'soft', onclick: f}, 'text', element, ...): strings become text, never markup.
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

// Formulas are written in this program's own files as markup: m('<i>x</i>').
function m(markup, kind = '') {
  const span = h('span', {class: 'math ' + kind});
  span.innerHTML = markup;
  return span;
}

// A number for reading: 4 significant digits (3 before a power of ten), a true minus, powers of ten
// only where they help.
function number(value, digits = 4) {
  if (value == null) return '–';
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '−∞';
  if (value === 0) return '0';
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(digits - 2) : value.toFixed(
      Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
  return text.replace(/-/g, '−').replace('e+', 'e');
}
const num = (value, digits) => h('span', {class: 'num'}, number(value, digits));

// A number for a cell of a heat map whose largest is `scale`: at most four characters where that is
// possible.
function brief(value, scale) {
  if (!Number.isFinite(value)) return number(value);
  const size = Math.abs(value), tiny = scale < .01;
  if (size === 0 || size < (tiny ? 5e-4 * scale : 5e-4)) return '0';
  if (tiny) return value.toExponential(0).replace(/-/g, '−');
  const text = (size < 0.995 ? size.toFixed(2).replace('0.', '.') : size < 9.95 ? size.toFixed(1)
    : size < 1e4 ? size.toFixed(0) : size.toExponential(0).replace('e+', 'e'));
  return text === '.00' ? '0' : (value < 0 ? '−' : '') + text;
}

// ---- what is shown, kept in the address: #groups=2&batch=3&cell=17 ------------------------------

const address = {
  read: () => Object.fromEntries(new URLSearchParams(location.hash.slice(1))),
  write(state) {
    const parts = Object.entries(state).filter(([, value]) => value != null && value !== '');
    const hash = '#' + new URLSearchParams(parts);
    if (hash !== location.hash) history.replaceState(null, '', hash);  // browsers refuse too many calls
  },
};

// ---- theme: the system's, until the reader or the address chooses -------------------------------

const systemDark = matchMedia('(prefers-color-scheme: dark)');
const themeButton = h('button', {type: 'button'});
let chosenTheme = null;
const isDark = () => (chosenTheme || (systemDark.matches ? 'dark' : 'light')) === 'dark';
function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? 'dark' : 'light';
  themeButton.textContent = isDark() ? '☀ light' : '☾ dark';
}
function followTheme() {
  chosenTheme = address.read().theme || chosenTheme;
  applyTheme();
}
systemDark.addEventListener('change', applyTheme);
addEventListener('hashchange', followTheme);
followTheme();

function pageTop(kicker, title, lead, changed) {
  themeButton.addEventListener('click', () => {
    chosenTheme = isDark() ? 'light' : 'dark';
    applyTheme();
    changed();
  });
  document.body.append(h('header', {class: 'top'},
    h('div', {class: 'kicker'}, h('span', {}, kicker), themeButton),
    h('h1', {}, title), lead));
}

function pageEnd(...lines) {
  document.body.append(h('footer', {}, ...lines.map((line) => h('p', {}, line))));
}
