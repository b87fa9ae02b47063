/** What every number means. */

function definitionsView() {
  const terms = [
    ["overlap", "v·u of a singular pair: what the pair writes times what it reads, signed. The diagonal of Z."],
    ["Z", "The r × r scalar products of output vectors (rows) and input vectors (columns) of W = U Σ Vᵀ."],
    ["z-score", "A head's number minus the mean of its baseline's draws, divided by their standard deviation."],
    ["p-value", "Share of draws at least as extreme as the head, counting the head itself; adjusted: corrected for the number of heads (Benjamini and Hochberg)."],
    ["gaussian", "Baseline: factors of independent normal entries with the head's factor norms: the article's random initialization."],
    ["spectrum", "Baseline: the head's own singular values with random directions."],
    ["shuffle", "Baseline: the entries of each factor permuted: keeps heavy tails."],
    ["rows", "Baseline: the norm of each residual dimension's row kept, its direction random: keeps outlier dimensions."],
    ["internal", "Baseline: both subspaces kept, the pairing between them random."],
    ["unpaired", "Baseline: the reading factor of this head with the writing factor of a head of another group."],
  ];
  const entry = (/** @type {string} */ name, /** @type {string} */ title, /** @type {(Node | string)[]} */ words) =>
    make("div", { class: "entry", id: `define-${name}`, tabindex: -1 }, make("dt", {}, title), make("dd", {}, ...words));
  const quantities = Object.entries(data.quantities).map(([name, q]) =>
    entry(name, q.label, [
      q.meaning, make("br"), ...(q.formula ? [make("code", {}, q.formula), make("br")] : []),
      make("span", { class: "small" }, `Column ${name}.${q.range ? ` Range ${q.range}${q.unit ? `, in units of ${q.unit}` : ""}. Source: ${q.source}.` : ""}`),
    ]),
  );
  const root = make(
    "section", {},
    make("section", { class: "card" }, make("h3", {}, "Quantities"), make("dl", { class: "definitions" }, ...quantities)),
    make("section", { class: "card" }, make("h3", {}, "Words"), make("dl", { class: "definitions" }, ...terms.map(([name, words]) => entry(name, name, [words])))),
  );

  /** @param {State} state */
  async function update(state) {
    for (const marked of root.querySelectorAll(".entry.marked")) marked.classList.remove("marked");
    const target = state.of ? document.getElementById(`define-${state.of}`) : null;
    target?.classList.add("marked");
    target?.scrollIntoView({ block: "center" });
    target?.focus({ preventScroll: true });
  }
  return { root, update, title: "Definitions", keys: false };
}
