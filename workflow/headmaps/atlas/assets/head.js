/** The page of one head. */

function headView() {
  const matrix = matrixSwitch();
  const name = make("h3", { class: "head-name", "aria-live": "polite" });
  const step = (/** @type {string} */ text, /** @type {string} */ label, /** @type {"layer" | "head"} */ key, /** @type {number} */ by) =>
    make("button", { type: "button", "aria-label": label, onclick: () => app.move(key, by) }, text);
  const choose = (/** @type {string} */ label, /** @type {[string, string][]} */ options, /** @type {"layer" | "head"} */ key) => {
    const control = chooser(label, (value) => app.go({ [key]: Number(value) }, "replace"));
    return { ...control, fill: (/** @type {number} */ value) => control.set([{ label: "", options }], String(value)) };
  };
  const layer = choose("Layer", data.layers.map((number, i) => [String(i), String(number)]), "layer");
  const head = choose("Head", range(data.heads).map((i) => [String(i), String(i)]), "head");
  const words = make("div", { class: "words" });
  const numbers = make("div", {});
  const map = figure("What it writes against what it reads");
  const spectrum = figure("Spectrum");
  const eigenvalues = figure("Eigenvalues");
  const root = make(
    "section", {},
    make(
      "div", { class: "controls" },
      make("div", { class: "stepper" }, step("↑", "Previous layer", "layer", -1), layer.root, step("↓", "Next layer", "layer", 1)),
      make("div", { class: "stepper" }, step("←", "Previous head", "head", -1), head.root, step("→", "Next head", "head", 1)),
      matrix.root,
    ),
    make("div", { class: "split head-split" }, map.root, make("div", {}, make("section", { class: "card" }, name, words), spectrum.root, eigenvalues.root)),
    make("section", { class: "card" }, make("h3", {}, "All numbers"), numbers),
  );

  /** @param {State} state */
  async function update(state) {
    const place = { matrix: state.matrix, layer: state.layer, head: state.head };
    const drawn = drawnTreatment(state);
    if (await app.yields()) return;
    const [of, Z, random, columns] = await Promise.all([
      data.layerPairs(drawn, place.matrix, place.layer), data.Z(drawn, place), data.block(`spectrum-${place.matrix}`, float32Block),
      data.columnsOf(state.treatment, data.treatments[state.treatment].columns),
    ]);
    matrix.set(data.matrices[state.matrix].name);
    layer.fill(state.layer);
    head.fill(state.head);
    name.textContent = `${headName(place)}, ${data.matrices[place.matrix].label}`;
    words.replaceChildren(...headWords(state, place, columns));
    const shown = { place, Z, of: (/** @type {string} */ pair) => of(pair, place.head) };
    await drawHeadmap(map, state, shown);
    if (await app.yields()) return;
    await drawSpectrum(spectrum, shown, random);
    if (await app.yields()) return;
    await drawEigenvalues(eigenvalues, shown);
    numbers.replaceChildren(...numbersTable(state, place, columns));
    data.prefetch(drawn, place);
  }
  return { root, update, title: "Head", keys: true };
}
