/** Table of heads: sort, filter, search, choose columns, download. */

const ROWS = 50;
const FIRST_COLUMNS = ["self_mean", "rotation_mean", "ortho_mean", "self_energy", "frobenius_norm"];

/**
 * @typedef {{column: string, sign: string, value: number}} Condition
 */

function tableView() {
  const find = /** @type {HTMLInputElement} */ (make("input", { type: "search", placeholder: "13.7, layer 3, qk …", oninput: () => app.go({ find: find.value, page: 1 }, "replace") }));
  const only = checkbox("Selected heads only", (on) => app.go({ only: on, page: 1 }, "replace"));
  const conditions = conditionEditor();
  const add = chooser("Add a column", (name) => name && app.go({ cols: [...shownColumns(app.state).filter((c) => c !== name), name].join(",") }, "replace"));
  const count = make("p", { class: "count", "aria-live": "polite" });
  const save = make("button", { type: "button" }, "Download these rows as CSV");
  const body = make("div", { class: "scroll table-box", tabindex: 0, role: "region", "aria-label": "Table of heads" });
  const pager = make("div", { class: "pager" });
  const root = make(
    "section", {},
    make("div", { class: "controls" }, make("label", { class: "control" }, make("span", {}, "Search"), find), conditions.root, add.root, only.root),
    conditions.chips, make("div", { class: "bar" }, count, save), make("div", { class: "card flush" }, body), pager,
    make("p", { class: "caption" }, "A row is one matrix of one head; click a column's name to sort by it, a head to open it. Missing values sort last. The download holds every column of heads.csv."),
  );
  /** @type {number[]} */
  let rows = [];
  save.addEventListener("click", async () => {
    const { treatment } = app.state;
    download(`${data.model}-heads.csv`, "text/csv", toCsv(treatment, rows, await data.columnsOf(treatment, data.treatments[treatment].columns)));
  });

  /** @param {State} state */
  async function update(state) {
    const shown = shownColumns(state);
    if (find.value !== state.find) find.value = state.find;
    only.set(state.only);
    const wanted = parseConditions(state.where);
    conditions.show(wanted, state);
    const there = data.columns.filter((c) => data.treatments[state.treatment].columns.includes(c.name) && !shown.includes(c.name));
    add.set([{ label: "", options: [["", "choose …"]] }, ...columnGroups(there)], "");
    const needed = [...new Set([...shown, ...wanted.map((w) => w.column), state.sort])].filter((name) => name !== "matrix");
    const columns = await data.columnsOf(state.treatment, needed);
    rows = sortRows(state, filterRows(state, wanted, columns), columns);
    const pages = Math.max(1, Math.ceil(rows.length / ROWS));
    const page = clamp(state.page, 1, pages);
    count.textContent = `${formatCount(rows.length)} of ${formatCount(data.size)} head matrices`;
    body.replaceChildren(rowsTable(state, shown, rows.slice((page - 1) * ROWS, page * ROWS), columns));
    pager.replaceChildren(...pagerButtons(page, pages));
  }
  return { root, update, title: "Table", keys: false };
}

/** @param {State} state */
function shownColumns(state) {
  const there = data.treatments[state.treatment].columns;
  const z = there.find((name) => name.startsWith("self_mean_") && name.endsWith("_z"));
  const names = state.cols ? state.cols.split(",") : [...FIRST_COLUMNS, ...(z ? [z] : [])];
  return names.filter((name) => there.includes(name));
}

/**
 * @param {string} text such as "self_mean>=0.3;layer<=10"
 * @returns {Condition[]}
 */
function parseConditions(text) {
  return text.split(";").flatMap((part) => {
    const match = /^(\w+)(>=|<=)(-?[\d.]+(?:e[+-]?\d+)?)$/i.exec(part);
    if (!match || !(data.columnOf.has(match[1]) || ["layer", "head"].includes(match[1]))) return [];
    return [{ column: match[1], sign: match[2], value: Number(match[3]) }];
  });
}

/** @param {Condition[]} conditions */
function writeConditions(conditions) {
  return conditions.map((c) => `${c.column}${c.sign}${c.value}`).join(";");
}

/** Controls that add a condition, and the chips that remove one. */
function conditionEditor() {
  let column = "self_mean";
  const which = chooser("Filter", (name) => (column = name));
  const sign = /** @type {HTMLSelectElement} */ (make("select", { "aria-label": "at least or at most" }, make("option", { value: ">=" }, "≥"), make("option", { value: "<=" }, "≤")));
  const value = /** @type {HTMLInputElement} */ (make("input", { type: "number", step: "any", "aria-label": "Limit", class: "short" }));
  const form = make("form", { class: "filter" }, which.root, sign, value, make("button", { type: "submit" }, "Add filter"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (value.value === "") return;
    const added = [...parseConditions(app.state.where), { column, sign: sign.value, value: Number(value.value) }];
    app.go({ where: writeConditions(added), page: 1 }, "push");
    value.value = "";
  });
  const chips = make("div", { class: "chips" });
  return {
    root: form,
    chips,
    /**
     * @param {Condition[]} conditions
     * @param {State} state
     */
    show(conditions, state) {
      const there = data.columns.filter((c) => data.treatments[state.treatment].columns.includes(c.name));
      which.set([{ label: "Place", options: [["layer", "layer"], ["head", "head"]] }, ...columnGroups(there)], column);
      chips.replaceChildren(...conditions.map((condition, i) => {
        const text = `${data.label(condition.column)} ${condition.sign === ">=" ? "≥" : "≤"} ${condition.value}`;
        const remove = () => app.go({ where: writeConditions(conditions.filter((_, k) => k !== i)), page: 1 }, "push");
        return make("button", { type: "button", class: "chip", "aria-label": `Remove the filter ${text}`, onclick: remove }, `${text} ×`);
      }));
    },
  };
}

/**
 * @param {State} state
 * @param {Condition[]} conditions
 * @param {Record<string, Float64Array>} columns
 */
function filterRows(state, conditions, columns) {
  const chosen = parseSelection(state.sel);
  const words = state.find.toLowerCase().match(/[a-z_]+\s*\d+|\d+\.\d+|[a-z_]+|\d+/g) ?? [];
  return range(data.size).filter((i) => {
    const place = data.place(i);
    if (state.only && !chosen.has(place.layer * data.heads + place.head)) return false;
    if (!words.every((word) => matchesWord(place, word))) return false;
    return conditions.every(({ column, sign, value }) => (sign === ">=" ? columns[column][i] >= value : columns[column][i] <= value));
  });
}

/**
 * "13.7" is a head, "layer 13" or "l13" a layer, "head 7" or "h7" a head number, anything else part of a matrix' name.
 * @param {Place} place
 * @param {string} word
 */
function matchesWord(place, word) {
  if (/^\d+\.\d+$/.test(word)) return shortName(place) === word;
  const numbered = /^(l|layer|h|head)\s*(\d+)$/.exec(word);
  if (numbered) return (numbered[1].startsWith("l") ? data.layers[place.layer] : place.head) === Number(numbered[2]);
  if (/^\d+$/.test(word)) return data.layers[place.layer] === Number(word);
  const matrix = data.matrices[place.matrix];
  return `${matrix.name} ${matrix.label}`.toLowerCase().includes(word) || "layer head".includes(word);
}

/**
 * @param {State} state
 * @param {number[]} rows
 * @param {Record<string, Float64Array>} columns
 */
function sortRows(state, rows, columns) {
  const place = (/** @type {number} */ i) => data.place(i);
  const key = state.sort === "matrix" ? (/** @type {number} */ i) => place(i).matrix : (/** @type {number} */ i) => columns[state.sort][i];
  const direction = state.down ? -1 : 1;
  return rows.sort((i, j) => {
    const [x, y] = [key(i), key(j)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y)) || i - j;
    return direction * (x - y) || place(i).layer - place(j).layer || place(i).head - place(j).head || i - j;
  });
}

/**
 * @param {State} state
 * @param {string[]} shown
 * @param {number[]} rows
 * @param {Record<string, Float64Array>} columns
 */
function rowsTable(state, shown, rows, columns) {
  const header = (/** @type {string} */ name, /** @type {string} */ label, /** @type {boolean} */ removable) => {
    const sorted = state.sort === name;
    const sort = () => app.go({ sort: name, down: sorted ? !state.down : data.columnOf.has(name), page: 1 }, "replace");
    const remove = () => app.go({ cols: shown.filter((c) => c !== name).join(",") }, "replace");
    return make(
      "th", { scope: "col", "aria-sort": sorted ? (state.down ? "descending" : "ascending") : null },
      make("div", {}, make("button", { type: "button", class: "sort", "data-sort": name, onclick: sort }, label, make("span", { "aria-hidden": "true", class: "arrow" }, sorted ? (state.down ? "▼" : "▲") : "")),
      removable && shown.length > 1 ? make("button", { type: "button", class: "remove", "aria-label": `Remove the column ${label}`, onclick: remove }, "×") : null),
    );
  };
  const keys = ["layer", "head", "matrix"];
  return make(
    "table", { class: "numbers" },
    make("thead", {}, make("tr", {}, ...keys.map((name) => header(name, name, false)), ...shown.map((name) => header(name, data.label(name), true)))),
    make("tbody", {}, ...rows.map((i) => {
      const place = data.place(i);
      const address = writeHash({ ...state, ...place, view: "head" });
      return make(
        "tr", {}, make("td", { class: "number" }, String(data.layers[place.layer])),
        make("td", { class: "number" }, link(address, String(place.head), make("span", { class: "hidden" }, ` of layer ${data.layers[place.layer]}, ${data.matrices[place.matrix].label}`))),
        make("td", {}, data.matrices[place.matrix].name),
        ...shown.map((name) => make("td", { class: "number" }, formatNumber(columns[name][i]))),
      );
    })),
  );
}

/**
 * @param {number} page
 * @param {number} pages
 */
function pagerButtons(page, pages) {
  const button = (/** @type {string} */ text, /** @type {number} */ to) =>
    make("button", { type: "button", disabled: to < 1 || to > pages || to === page, onclick: () => app.go({ page: to }, "replace") }, text);
  return [button("First", 1), button("Previous", page - 1), make("span", {}, `Page ${page} of ${pages}`), button("Next", page + 1), button("Last", pages)];
}

/**
 * heads.csv of some rows: all columns, numbers as the shortest text that reads back the same.
 * @param {number} treatment
 * @param {number[]} rows
 * @param {Record<string, Float64Array>} columns
 */
function toCsv(treatment, rows, columns) {
  const { columns: names, words } = data.treatments[treatment];
  const more = Object.keys(words);
  const quote = (/** @type {string} */ text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
  const lines = rows.map((i) => {
    const place = data.place(i);
    const numbers = names.map((name) => (Number.isNaN(columns[name][i]) ? "" : String(columns[name][i])));
    return [data.layers[place.layer], place.head, data.matrices[place.matrix].name, ...numbers, ...more.map((name) => quote(words[name][i]))].join(",");
  });
  return `${[["layer", "head", "matrix", ...names, ...more].join(","), ...lines].join("\n")}\n`;
}
