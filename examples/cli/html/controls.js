// The bar of sliders and switches. A control: {key, label, values, says: {value: text}, names};
// values that are numbers make a slider, words a switch.
'use strict';

// What the address says of the controls.
function statedIn(controls) {
  const read = address.read(), found = {};
  for (const control of controls) {
    const value = control.values.find((v) => String(v) === read[control.key]);
    if (value !== undefined) found[control.key] = value;
  }
  return found;
}

function switchOf(control, set) {
  const buttons = control.values.map((value) => h('button', {type: 'button', 'data-value': value,
    onclick: () => set(value)}, control.names?.[value] || value));
  const follow = (value) => buttons.forEach((button) =>
    button.setAttribute('aria-pressed', button.dataset.value === value));
  return [[h('span', {class: 'pair', role: 'group', 'aria-label': control.label}, buttons)], follow];
}

function sliderOf(control, set) {
  const slider = h('input', {type: 'range', id: control.key, min: 0, max: control.values.length - 1, step: 1,
    oninput: () => set(control.values[Number(slider.value)])});
  const output = h('output', {for: control.key});
  const follow = (value) => {
    slider.value = control.values.indexOf(value);
    slider.setAttribute('aria-valuetext', String(value));
    output.textContent = value;
  };
  return [[h('label', {for: control.key}, control.label), slider, output], follow];
}

// Each control gets update(), which shows what `state` says.
function controlBar(controls, state, changed) {
  const parts = controls.map((control) => {
    const set = (value) => { state[control.key] = value; changed(); };
    const [elements, follow] = (typeof control.values[0] === 'string' ? switchOf : sliderOf)(control, set);
    const says = h('span', {class: 'says'});
    control.update = () => {
      follow(state[control.key]);
      says.textContent = control.says?.[state[control.key]] || '';
    };
    return h('div', {class: 'control'}, elements, says);
  });
  return h('div', {class: 'bar'}, h('div', {}, parts));
}
