/** Light and dark: as the system says, until the reader chooses. */

const theme = {
  /** @type {string} "", "light" or "dark" */ chosen: "",

  dark() {
    return this.chosen ? this.chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  },

  apply() {
    document.documentElement.dataset.theme = this.dark() ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.textContent = this.dark() ? "Light" : "Dark";
    button?.setAttribute("aria-label", `Switch to the ${this.dark() ? "light" : "dark"} theme`);
  },

  /** @param {() => void} redraw */
  start(redraw) {
    try {
      this.chosen = localStorage.getItem("headmaps-theme") ?? "";
    } catch {
      this.chosen = ""; // storage is closed to pages from disk in some browsers; the system's choice then holds
    }
    this.apply();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.apply();
      redraw();
    });
    document.getElementById("theme")?.addEventListener("click", () => {
      this.chosen = this.dark() ? "light" : "dark";
      try {
        localStorage.setItem("headmaps-theme", this.chosen);
      } catch {
        // the choice lasts as long as the page
      }
      this.apply();
      redraw();
    });
  },
};
