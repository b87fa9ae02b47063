/** Small helpers that make elements. */

/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on...` are listeners, `true` is an attribute without value
 * @param {...(Node | string | number | null | undefined)} children
 * @returns {HTMLElement}
 */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return element;
}

/**
 * @param {string} address
 * @param {...(Node | string)} children
 */
function link(address, ...children) {
  return make("a", { href: address }, ...children);
}

let chosenIds = 0;

/**
 * A labelled drop-down list whose choices can be replaced.
 * @param {string} label
 * @param {(value: string) => void} onchange
 * @returns {{root: HTMLElement, set: (groups: {label: string, options: [string, string][]}[], value: string) => void}}
 */
function chooser(label, onchange) {
  const id = `choose-${(chosenIds += 1)}`;
  const select = /** @type {HTMLSelectElement} */ (make("select", { id, onchange: () => onchange(select.value) }));
  let shown = "";
  return {
    root: make("div", { class: "control" }, make("label", { for: id }, label), select),
    set(groups, value) {
      const key = JSON.stringify(groups);
      if (key !== shown) {
        shown = key;
        select.replaceChildren(
          ...groups.flatMap((group) => {
            const options = group.options.map(([name, text]) => make("option", { value: name }, text));
            return group.label ? [make("optgroup", { label: group.label }, ...options)] : options;
          }),
        );
      }
      select.value = value;
    },
  };
}

/**
 * A row of buttons of which one is pressed.
 * @param {string} label
 * @param {[string, string][]} options value, text
 * @param {(value: string) => void} onchoose
 * @returns {{root: HTMLElement, set: (value: string) => void}}
 */
function segmented(label, options, onchoose) {
  const buttons = options.map(([value, text]) =>
    make("button", { type: "button", "data-value": value, onclick: () => onchoose(value) }, text),
  );
  const root = make("div", { class: "control" }, make("span", {}, label), make("div", { class: "segmented", role: "group", "aria-label": label }, ...buttons));
  return {
    root,
    set(value) {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
    },
  };
}

/**
 * @param {string} label
 * @param {(on: boolean) => void} onchange
 * @returns {{root: HTMLElement, set: (on: boolean) => void}}
 */
function checkbox(label, onchange) {
  const input = /** @type {HTMLInputElement} */ (make("input", { type: "checkbox", onchange: () => onchange(input.checked) }));
  return {
    root: make("label", { class: "control check" }, input, make("span", {}, label)),
    set(on) {
      input.checked = on;
    },
  };
}

/** @param {() => void} task to do when nothing else is */
function whenIdle(task) {
  if (window.requestIdleCallback) window.requestIdleCallback(task, { timeout: 2000 });
  else setTimeout(task, 200);
}

/**
 * Give the user a file.
 * @param {string} name
 * @param {string} type
 * @param {string} text
 */
function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
