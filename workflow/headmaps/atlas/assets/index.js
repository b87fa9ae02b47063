/** The index page: a table of the models, and their comparison. */

const page = {
  state: readIndexState(),
  drawing: false,
  again: false,

  /** @param {Partial<IndexState>} change */
  go(change) {
    this.state = { ...this.state, ...change };
    history.replaceState(null, "", writeIndexState(this.state));
    this.render();
  },

  /** Draw the current state; while a drawing runs, only the latest further state is drawn. */
  async render() {
    this.again = true;
    if (this.drawing) return;
    this.drawing = true;
    document.body.dataset.drawing = "yes";
    while (this.again) {
      this.again = false;
      try {
        await drawIndex(this.state);
      } catch (error) {
        console.error(error);
        const notice = /** @type {HTMLElement} */ (document.getElementById("notice"));
        notice.hidden = false;
        notice.textContent = `This page cannot be drawn: ${error instanceof Error ? error.message : error}`;
      }
    }
    this.drawing = false;
    document.body.dataset.drawing = "no";
    document.body.dataset.drawn = location.hash;
  },
};

const parts = {
  quantity: chooser("Quantity", (q) => page.go({ q })),
  matrix: segmented("Matrix", matrixNames, (matrix) => page.go({ matrix })),
  first: chooser("First model", (i) => page.go({ a: Number(i) })),
  second: chooser("Second model", (i) => page.go({ b: Number(i) })),
  meaning: make("p", { class: "meaning" }),
  table: make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Models" }),
  distributions: figure("Distribution over heads"),
  depth: figure("Along the depth"),
  pairing: figure("Two models, head by head"),
};

function layIndexOut() {
  const several = models.length > 1;
  const pairing = make("div", {}, make("div", { class: "controls" }, parts.first.root, parts.second.root), parts.pairing.root);
  document.getElementById("view")?.append(
    make("div", { class: "controls" }, parts.quantity.root, parts.matrix.root), parts.meaning,
    make("div", { class: "card flush" }, parts.table),
    make("div", { class: several ? "columns" : "" }, make("div", {}, parts.distributions.root, parts.depth.root), several ? pairing : ""),
  );
  const words = [`${models.length} ${several ? "models" : "model"}`, `${formatCount(models.reduce((n, m) => n + m.layers.length * m.heads, 0))} heads`];
  /** @type {HTMLElement} */ (document.getElementById("facts")).textContent = words.join(" · ");
  parts.pairing.listen("plotly_click", (event) => {
    const place = event.points[0].customdata;
    if (place) location.href = `${models[page.state.b].href}#/head?layer=${place[0]}&head=${place[1]}&matrix=${page.state.matrix}`;
  });
}

/** @param {IndexState} state */
async function drawIndex(state) {
  const quantity = manifest.quantities.find((/** @type {{name: string}} */ q) => q.name === state.q);
  const names = /** @type {[string, string][]} */ (models.map((m, i) => [String(i), m.name]));
  parts.quantity.set([{ label: "", options: manifest.quantities.map((/** @type {{name: string, label: string}} */ q) => [q.name, q.label]) }], state.q);
  parts.matrix.set(state.matrix);
  parts.first.set([{ label: "", options: names }], String(state.a));
  parts.second.set([{ label: "", options: names }], String(state.b));
  parts.meaning.replaceChildren(`${quantity.meaning} `, link(`${models[0].href}#/definitions?of=${state.q}`, "Definition"));
  const values = await Promise.all(models.map((_, i) => store.values(i, state.matrix, state.q)));
  parts.table.replaceChildren(modelsTable(values, quantity.label));
  await drawDistributions(parts.distributions, state, values, quantity.label);
  await drawDepth(parts.depth, state, values, quantity.label);
  if (models.length > 1) await drawPairing(parts.pairing, state, values, quantity.label);
}

/**
 * @param {(Float32Array | null)[]} values
 * @param {string} label
 */
function modelsTable(values, label) {
  const heads = ["Model", "Layers", "Heads", "Key/value heads", "d_model", "d_head", "Stored as", "Weights", `Median ${label}`];
  return make(
    "table", { class: "numbers" },
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...models.map((model, i) => {
      const number = (/** @type {string | number} */ text) => make("td", { class: "number" }, String(text));
      return make(
        "tr", {}, make("th", { scope: "row" }, link(`${model.href}`, model.name)),
        number(model.layers.length), number(model.heads), number(model.kv_heads), number(model.d_model), number(model.matrices[0].rank),
        number(model.dtype), number(model.treatment.replace(/_/g, " ")), number(formatNumber(quantiles(values[i] ?? [], [0.5])[0])),
      );
    })),
  );
}

function startIndex() {
  layIndexOut();
  theme.start(() => page.render());
  window.addEventListener("hashchange", () => {
    page.state = readIndexState();
    page.render();
  });
  let known = window.innerWidth;
  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (window.innerWidth !== known) page.render();
      known = window.innerWidth;
    }, 120);
  });
  page.render();
}

startIndex();
