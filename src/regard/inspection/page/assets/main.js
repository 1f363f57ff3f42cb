// The page: reads its document, and shows the title, the tabs and the view that its address names.

import { alignmentView, defaultAttention } from "./alignment.js";
import { traceName, pairView } from "./comparison.js";
import { choice, traceNumber } from "./controls.js";
import { fill, isolatedText, make, readState, writeState } from "./dom.js";
import { headsView } from "./heads.js";
import { longView } from "./long.js";
import { plural } from "./numbers.js";
import { isSmall } from "./planes.js";
import { clearThemeCache, isDark } from "./scale.js";
import { textOf } from "./text.js";
import { treeView } from "./tree.js";
import { EmbeddedSource, ServedSource } from "./weights.js";
import { whatIfView } from "./what_if.js";

const VIEWS = [alignmentView, headsView, treeView, whatIfView, longView, pairView];

/** @returns {Page} */
function readPage() {
  const element = /** @type {HTMLElement} */ (document.getElementById("page"));
  const page = JSON.parse(element.textContent ?? "");
  element.textContent = ""; // it may be large, and is not needed twice
  if (page.version !== 1) throw new Error(`This page has version ${page.version}, which its script does not support.`);
  return page;
}

/** @param {HTMLElement} root */
function start(root) {
  const page = readPage();
  const room = make("div", { id: "view", role: "tabpanel", tabindex: "-1" });
  const live = make("div", { class: "visually-hidden", "aria-live": "polite", role: "status" });
  const header = make("header", { class: "page" });
  const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
  const origins = page.traces.map((_, i) => i);
  /** @type {(() => void)[]} */
  let closing = [];
  let saying = 0;
  /** @type {App} */
  const app = {
    page,
    traces: page.traces,
    state: readState(),
    source: page.served ? new ServedSource(page.traces) : new EmbeddedSource(page.traces),
    navigate(change) {
      app.updateState(change);
      draw();
    },
    updateState(change) {
      for (const [key, value] of Object.entries(change))
        if (value) app.state[key] = value;
        else delete app.state[key];
      writeState(app.state);
    },
    announce(text) {
      clearTimeout(saying);
      saying = window.setTimeout(() => {
        live.textContent = text;
      }, 120);
    },
    addTrace(trace, of) {
      origins.push(origins[of]);
      return page.traces.push(trace) - 1;
    },
    modelOf: (number) => origins[number],
    onClose(work) {
      closing.push(work);
    }
  };

  function draw() {
    for (const work of closing) work();
    closing = [];
    const held = focusRestorer(document.activeElement);
    const trace = app.traces[traceNumber(app)];
    const view =
      VIEWS.find(({ name }) => name === app.state.view) ??
      (isSmall(trace, trace.attentions[defaultAttention(trace)]) ? alignmentView : longView);
    fill(header, ...pageTitle(app, trace), themeSwitch(app, draw));
    fill(
      tabs,
      ...VIEWS.map((one) =>
        make(
          "button",
          {
            type: "button",
            role: "tab",
            id: `tab-${one.name}`,
            "aria-controls": "view",
            "aria-selected": String(one === view),
            tabindex: one === view ? "0" : "-1",
            click: () => app.navigate({ view: one.name, large: "" })
          },
          one.title
        )
      )
    );
    room.setAttribute("aria-labelledby", `tab-${view.name}`);
    room.className = `view ${view.name}`;
    fill(room);
    view.open(app, room);
    held?.();
  }

  tabs.addEventListener("keydown", (event) => {
    const [at, count] = [VIEWS.findIndex(({ name }) => room.classList.contains(name)), VIEWS.length];
    /** @type {Record<string, number | undefined>} */
    const next = { ArrowRight: (at + 1) % count, ArrowLeft: (at + count - 1) % count, Home: 0, End: count - 1 };
    const to = next[event.key];
    if (to === undefined) return;
    event.preventDefault();
    app.navigate({ view: VIEWS[to].name, large: "" });
    document.getElementById(`tab-${VIEWS[to].name}`)?.focus();
  });
  window.addEventListener("hashchange", () => {
    app.state = readState();
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme(app.state.theme);
    draw();
  });
  fill(root, header, make("main", {}, tabs, room), live);
  applyTheme(app.state.theme);
  draw();
}

/**
 * A page that is drawn again gives the focus back to the control that had it: by its label, for it is another element.
 * @param {Element | null} element
 */
function focusRestorer(element) {
  if (!element || element === document.body) return null;
  if (element.id.startsWith("tab-")) return () => document.getElementById(element.id)?.focus();
  const selector = element.tagName.toLowerCase();
  const at = [...document.querySelectorAll(selector)].indexOf(element);
  return ["select", "input"].includes(selector)
    ? () => {
        const again = document.querySelectorAll(selector)[at];
        if (again instanceof HTMLElement) again.focus();
      }
    : null;
}

/**
 * @param {App} app
 * @param {Trace} trace
 */
function pageTitle(app, trace) {
  const sides = Object.values(trace.sides);
  const written = trace.written ? trace.sides[trace.written.side] : null;
  const first = trace.title || app.page.title || (sides[0].tokens.length < 200 ? textOf(sides[0]) : "");
  const output = written && written !== sides[0] && written.tokens.length < 200 ? textOf(written) : "";
  const heads = trace.attentions.reduce((sum, one) => sum + one.heads, 0);
  const names = app.traces.map((one, i) => /** @type {[string, string]} */ ([String(i), traceName(one, i)]));
  return [
    make(
      "div",
      { class: "titles" },
      make("h1", { dir: "auto" }, isolatedText(first || "Attention")),
      output && output !== first ? make("p", { class: "output", dir: "auto" }, isolatedText(output)) : null,
      make(
        "p",
        { class: "quiet" },
        [
          trace.model,
          `${plural(trace.attentions.length, "attention")}, ${plural(heads, "head")}`,
          Object.entries(trace.sides)
            .map(([name, side]) => `${name}: ${plural(side.tokens.length, "token")}`)
            .join(", ")
        ]
          .filter(Boolean)
          .join(" · ")
      )
    ),
    names.length > 1
      ? choice("Trace", names, String(traceNumber(app)), (value) =>
          app.navigate({ trace: value, attention: "", head: "", row: "", column: "", node: "", x: "", y: "", zoom: "" })
        )
      : null
  ];
}

/**
 * @param {App} app
 * @param {() => void} draw
 */
function themeSwitch(app, draw) {
  const to = isDark() ? "light" : "dark";
  return make(
    "button",
    {
      type: "button",
      class: "plain theme",
      click: () => {
        app.updateState({ theme: to });
        applyTheme(to);
        draw();
        /** @type {HTMLElement | null} */ (document.querySelector(".theme"))?.focus();
      }
    },
    to === "dark" ? "Dark" : "Light"
  );
}

/** @param {string | undefined} theme what was chosen; otherwise it is the system's */
function applyTheme(theme) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme === "dark" || theme === "light" ? theme : system;
  clearThemeCache();
}

const place = document.getElementById("app");
if (place) {
  try {
    start(place);
  } catch (error) {
    fill(
      place,
      make("p", { class: "wrong", role: "alert" }, `This page cannot be shown: ${/** @type {Error} */ (error).message}`)
    );
  }
}
