/** The page's frame: the address decides what is shown; links, keys and clicks change the address. */

/** @type {Record<string, () => {root: HTMLElement, update: (state: State) => Promise<void>, title: string, keys: boolean}>} */
const MAKERS = {
  overview: overviewView, scatter: scatterView, histogram: histogramView, head: headView, table: tableView,
  making: makingView, definitions: definitionsView,
};

const app = {
  state: { ...DEFAULTS },
  /** @type {Record<string, ReturnType<typeof headView>>} */ views: {},
  /** @type {string[]} */ faults: [],
  drawing: false,
  again: false,
  warming: false,

  /**
   * Change the state, and with it the address.
   * @param {Partial<State>} change
   * @param {"push" | "replace"} how push: "back" undoes it
   */
  go(change, how) {
    const next = { ...this.state, ...change };
    const hash = writeHash(next);
    const moved = next.view !== this.state.view;
    if (hash !== location.hash) history[how === "push" ? "pushState" : "replaceState"](null, "", hash);
    this.state = next;
    this.faults = [];
    if (moved) this.arrive();
    this.render();
  },

  /** The address changed: a link, "back", or the first view. */
  read() {
    const { state, faults } = parseHash(location.hash);
    const moved = state.view !== this.state.view;
    const first = !document.body.dataset.drawn;
    Object.assign(this, { state, faults });
    if (moved && !first) this.arrive();
    this.render();
  },

  /** A view was entered: start at its top, with the focus on its heading. */
  arrive() {
    window.scrollTo(0, 0);
    document.getElementById("view-title")?.focus({ preventScroll: true });
  },

  /**
   * @param {"layer" | "head"} key
   * @param {number} by
   */
  move(key, by) {
    const count = key === "layer" ? data.layers.length : data.heads;
    this.go({ [key]: clamp(this.state[key] + by, 0, count - 1) }, "replace");
  },

  /** Draw the current state; while a drawing runs, only the latest further state is drawn. */
  async render() {
    this.again = true;
    document.body.dataset.drawing = "yes";
    if (this.drawing) return;
    this.drawing = true;
    while (this.again) {
      this.again = false;
      await this.draw(this.state);
    }
    this.drawing = false;
    document.body.dataset.drawing = "no";
    document.body.dataset.drawn = location.hash || writeHash(this.state);
    performance.mark("atlas-drawn");
    if (!this.views.head) whenIdle(() => this.warm());
  },

  /**
   * Draw the head page unseen once, in pieces, so that the first click on a head is as quick as the next: most of the
   * time goes into plotly's first drawing of each kind.
   */
  async warm() {
    if (this.drawing || this.views.head) return;
    const shelf = make("div", { class: "shelf", "aria-hidden": "true", inert: true });
    document.querySelector("main")?.append(shelf);
    this.views.head = MAKERS.head();
    shelf.append(this.views.head.root);
    this.drawing = this.warming = true;
    try {
      await this.views.head.update(this.state);
    } finally {
      this.drawing = this.warming = false;
      this.views.head.root.remove();
      shelf.remove();
    }
    if (this.again) this.render();
  },

  /** While warming up: let the page breathe, and say whether something real is waiting. */
  async yields() {
    if (this.warming) await new Promise((resolve) => setTimeout(resolve, 20));
    return this.warming && this.again;
  },

  /** @param {State} state */
  async draw(state) {
    const main = /** @type {HTMLElement} */ (document.getElementById("view"));
    this.views[state.view] ??= MAKERS[state.view]();
    const view = this.views[state.view];
    if (view.root.parentElement !== main) main.replaceChildren(view.root);
    const title = /** @type {HTMLElement} */ (document.getElementById("view-title"));
    if (title.textContent !== view.title) title.textContent = view.title;
    document.title = `${state.view === "head" ? headName(state) : view.title} · ${data.model}`;
    frame.update(state, this.faults);
    try {
      await view.update(state);
    } catch (error) {
      console.error(error);
      frame.notice([`This view cannot be drawn: ${error instanceof Error ? error.message : error}`]);
    }
  },
};

const frame = {
  treatment: segmented("Weights", data.treatments.map((t) => [t.name, t.name.replace(/_/g, " ")]), (name) =>
    app.go({ treatment: data.treatments.findIndex((t) => t.name === name) }, "replace"),
  ),

  /**
   * @param {State} state
   * @param {string[]} faults
   */
  update(state, faults) {
    for (const anchor of document.querySelectorAll("nav a[data-view]")) {
      const view = /** @type {HTMLElement} */ (anchor).dataset.view ?? "";
      anchor.setAttribute("href", writeHash({ ...state, view, of: "" }));
      if (view === state.view) {
        anchor.setAttribute("aria-current", "page");
        this.reveal(/** @type {HTMLElement} */ (anchor));
      } else anchor.removeAttribute("aria-current");
    }
    this.treatment.set(data.treatments[state.treatment].name);
    this.notice(faults.length ? [`This address names what this page does not have: ${faults.join(", ")}.`] : []);
  },

  /**
   * On a narrow screen the views' names scroll sideways; the page itself must not move.
   * @param {HTMLElement} anchor
   */
  reveal(anchor) {
    const bar = /** @type {HTMLElement} */ (anchor.parentElement);
    const left = anchor.offsetLeft - bar.offsetLeft;
    bar.scrollLeft = clamp(bar.scrollLeft, left + anchor.offsetWidth - bar.clientWidth, left);
  },

  /** @param {string[]} words */
  notice(words) {
    const notice = /** @type {HTMLElement} */ (document.getElementById("notice"));
    notice.hidden = !words.length;
    notice.replaceChildren(...words);
  },
};

const ARROWS = /** @type {Record<string, ["layer" | "head", number]>} */ ({
  ArrowLeft: ["head", -1], ArrowRight: ["head", 1], ArrowUp: ["layer", -1], ArrowDown: ["layer", 1],
});

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.defaultPrevented) return;
  if (!app.views[app.state.view]?.keys || target.closest("input, select, textarea, .scroll, pre, nav")) return;
  if (event.key in ARROWS) {
    event.preventDefault();
    app.move(...ARROWS[event.key]);
  } else if (event.key === "Enter" && app.state.view !== "head" && !target.closest("a, button, summary")) {
    event.preventDefault();
    app.go({ view: "head" }, "push");
  }
}

function start() {
  const { d_model: width, n_kv_heads: shared } = manifest;
  const words = [`${data.layers.length} layers × ${data.heads} heads`, `d_model ${width}`, `d_head ${data.matrices[0].rank}`];
  if (shared < data.heads) words.push(`${shared} key/value heads`);
  if (data.treatments.length === 1) words.push(`${data.treatments[0].name.replace(/_/g, " ")} weights`);
  /** @type {HTMLElement} */ (document.getElementById("facts")).textContent = words.join(" · ");
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // its address would be taken for a state of the page
    document.getElementById("view-title")?.focus();
  });
  theme.start(() => app.render());
  if (data.treatments.length > 1) document.getElementById("settings")?.prepend(frame.treatment.root);
  window.addEventListener("popstate", () => app.read());
  window.addEventListener("hashchange", () => location.hash !== document.body.dataset.drawn && app.read());
  document.addEventListener("keydown", onKey);
  let known = window.innerWidth;
  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (window.innerWidth !== known) app.render();
      known = window.innerWidth;
    }, 120);
  });
  app.read();
}

start();
