/** The state of the page is its address: everything a shared link must bring back is in the hash. */

/**
 * @typedef {{
 *   view: string, q: string, layer: number, head: number, matrix: number, treatment: number,
 *   sel: string, weighted: boolean, range: string, zoom: boolean, sort: string, down: boolean, page: number,
 *   find: string, where: string, cols: string, only: boolean, of: string,
 * }} State layer, matrix and treatment by their place in the page's lists
 */

const VIEWS = ["overview", "scatter", "histogram", "head", "table", "making", "definitions"];

/** @type {State} */
const DEFAULTS = {
  view: "overview", q: "self_mean", layer: 0, head: 0, matrix: 0, treatment: 0,
  sel: "", weighted: true, range: "auto", zoom: true, sort: "layer", down: false, page: 1,
  find: "", where: "", cols: "", only: false, of: "",
};

/** How a key is written in the address, and read: null for a value that this page does not have. */
const CODECS = /** @type {Record<string, {write: (v: any) => string, read: (text: string) => any}>} */ ({
  layer: { write: (i) => String(data.layers[i]), read: (text) => found(data.layers.map(String).indexOf(text)) },
  matrix: { write: (i) => data.matrices[i].name, read: (text) => found(data.matrices.findIndex((m) => m.name === text)) },
  treatment: {
    write: (i) => data.treatments[i].name,
    read: (text) => found(data.treatments.findIndex((t) => t.name === text)),
  },
  head: { write: String, read: (text) => (/^\d+$/.test(text) && Number(text) < data.heads ? Number(text) : null) },
  q: { write: String, read: (text) => (data.columnOf.has(text) ? text : null) },
  sort: { write: String, read: (text) => (["layer", "head", "matrix"].includes(text) || data.columnOf.has(text) ? text : null) },
  page: { write: String, read: (text) => (/^[1-9]\d*$/.test(text) ? Number(text) : null) },
  range: { write: String, read: (text) => (["auto", "one", "all"].includes(text) ? text : null) },
  flag: { write: (on) => (on ? "yes" : "no"), read: (text) => (text === "yes" || text === "no" ? text === "yes" : null) },
  text: { write: String, read: (text) => text },
});

/** @param {number} place */
function found(place) {
  return place >= 0 ? place : null;
}

/** @param {string} key */
function codec(key) {
  const kind = typeof DEFAULTS[/** @type {keyof State} */ (key)] === "boolean" ? "flag" : "text";
  return Object.hasOwn(CODECS, key) ? CODECS[key] : CODECS[kind];
}

/**
 * @param {string} hash
 * @returns {{state: State, faults: string[]}} faults: what the address names that this page does not have
 */
function parseHash(hash) {
  const state = { ...DEFAULTS };
  const faults = [];
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  if (path && !VIEWS.includes(path)) faults.push(`view ${path}`);
  else if (path) state.view = path;
  for (const [key, text] of new URLSearchParams(query)) {
    const value = Object.hasOwn(DEFAULTS, key) && key !== "view" ? codec(key).read(text) : null;
    if (value === null) faults.push(`${key} ${text}`);
    else /** @type {any} */ (state)[key] = value;
  }
  return { state, faults };
}

/**
 * @param {State} state
 * @returns {string} the shortest address that brings this state back
 */
function writeHash(state) {
  const query = new URLSearchParams();
  for (const key of Object.keys(DEFAULTS)) {
    const value = /** @type {any} */ (state)[key];
    if (key !== "view" && value !== /** @type {any} */ (DEFAULTS)[key]) query.set(key, codec(key).write(value));
  }
  const text = query.toString();
  return `#/${state.view}${text ? `?${text}` : ""}`;
}

/**
 * Selected heads as sorted numbers layer * heads + head (of the page's layer order), from "13.7,13.9".
 * @param {string} text
 * @returns {Set<number>}
 */
function parseSelection(text) {
  const chosen = new Set();
  for (const part of text.split(",")) {
    const match = /^(\d+)\.(\d+)$/.exec(part);
    const layer = match ? data.layers.indexOf(Number(match[1])) : -1;
    if (match && layer >= 0 && Number(match[2]) < data.heads) chosen.add(layer * data.heads + Number(match[2]));
  }
  return chosen;
}

/** @param {Iterable<number>} chosen */
function writeSelection(chosen) {
  return [...new Set(chosen)]
    .sort((a, b) => a - b)
    .map((n) => `${data.layers[Math.floor(n / data.heads)]}.${n % data.heads}`)
    .join(",");
}
