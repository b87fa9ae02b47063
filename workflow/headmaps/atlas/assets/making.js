/** How this was made. */

function makingView() {
  const { sections = [], files = [], config = {}, geometry = {} } = manifest.making;
  const facts = sections.map((/** @type {{title: string, rows: [string, string][]}} */ section) =>
    make(
      "section", { class: "card" }, make("h3", {}, section.title),
      make("dl", { class: "facts" }, ...section.rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    ),
  );
  const notes = manifest.notes.length ? [make("section", { class: "card" }, make("h3", {}, "Notes on this model"), make("ul", {}, ...manifest.notes.map((/** @type {string} */ note) => make("li", {}, note))))] : [];
  const json = (/** @type {string} */ title, /** @type {unknown} */ value) =>
    make("details", { class: "card" }, make("summary", {}, title), make("pre", { tabindex: 0 }, JSON.stringify(value, null, 1)));
  const hashes = make(
    "details", { class: "card" }, make("summary", {}, `The ${formatCount(files.length)} results files behind this page, with their sha256`),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Files and hashes" }, make("table", { class: "numbers" }, make("tbody", {}, ...files.map((/** @type {{file: string, sha256: string}} */ f) => make("tr", {}, make("th", { scope: "row" }, f.file), make("td", {}, make("code", {}, f.sha256))))))),
  );
  const root = make("section", {}, make("div", { class: "masonry" }, ...facts, ...notes), json("Configuration", config), json("Geometry", geometry), hashes);
  return { root, update: async () => {}, title: "How this was made", keys: false };
}
