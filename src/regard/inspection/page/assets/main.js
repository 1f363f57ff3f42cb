// The page: reads its document, and shows the title, the tabs and the view that its address names.

import { defaultAttention } from "./alignment.js";
import { choice, failure, notice, traceName, traceNumber } from "./controls.js";
import { fill, isolatedText, make, readState, writeState } from "./dom.js";
import { plural } from "./numbers.js";
import { isSmall } from "./planes.js";
import { clearThemeCache, isDark } from "./scale.js";
import { unpackSearch } from "./search.js";
import { directionOf, textOf } from "./text.js";
import { VIEWS } from "./views.js";
import { EmbeddedSource, ServedSource } from "./weights.js";

const ORDER = ["read", "heads", "search", "try", "compare", "map"];
const LONG = 120; // tokens of a side from which there is a map

/** @type {Record<string, State>} links of earlier versions */
const RENAMED = {
  alignment: { view: "read", matrix: "yes" },
  tree: { view: "search" },
  "what-if": { view: "try" },
  pair: { view: "compare" },
  long: { view: "map" }
};

/** @type {Record<string, [string, string, string]>} the title of a view that is not in this page, and how to get it */
const ABSENT = {
  search: ["Search", "This trace has no beam search. To record one, run:", 'regard look MODEL "text" --beam 5'],
  try: [
    "Try",
    "This page has no model. To try another text, a forced prefix or another hypothesis, run:",
    'regard look MODEL "your text"'
  ]
};

/**
 * The view of this name; where the page does not have it, one that says how to get it.
 * @param {string} name
 * @param {Trace} trace
 * @returns {View | undefined}
 */
function viewNamed(name, trace) {
  const view = VIEWS.find((one) => one.name === name);
  if ((view && (name !== "search" || trace.search?.nodes.length)) || !Object.hasOwn(ABSENT, name)) return view;
  const [title, text, command] = ABSENT[name];
  return { name, title, open: (_, room) => fill(room, notice(text), make("pre", {}, make("code", {}, command))) };
}

/**
 * The views that say something of a trace, and the one that is asked for.
 * @param {Trace} trace
 * @param {View | undefined} asked
 */
function viewsOf(trace, asked) {
  const sides = Object.values(trace.sides);
  const written = trace.attentions.some((one) => one.queries === trace.written?.side);
  /** @type {Record<string, boolean>} */
  const fits = {
    search: Boolean(trace.search) || written,
    try: !sides.some((side) => side.grid),
    map: sides.some((side) => side.tokens.length > LONG)
  };
  // A link may ask for a view that has no tab here: then it gets one.
  const names = ORDER.filter((name) => (fits[name] ?? true) || name === asked?.name);
  return names.flatMap((name) => viewNamed(name, trace) ?? []);
}

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
  page.traces.forEach(unpackSearch);
  const room = make("div", { id: "view", role: "tabpanel", tabindex: "-1" });
  const live = make("div", { class: "visually-hidden", "aria-live": "polite", role: "status" });
  const header = make("header", { class: "page" });
  const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
  const about = make("div", { class: "about" });
  const origins = page.traces.map((_, i) => i);
  /** @type {(() => void)[]} */
  let closing = [];
  let saying = 0;
  let shown = VIEWS;
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
      unpackSearch(trace);
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
    const renamed = Object.hasOwn(RENAMED, app.state.view ?? "") ? RENAMED[app.state.view] : null;
    if (renamed) app.updateState(renamed);
    const asked = viewNamed(app.state.view ?? "", trace);
    const usual = isSmall(trace, trace.attentions[defaultAttention(trace)]) ? "read" : "map";
    shown = viewsOf(trace, asked);
    const view = shown.find(({ name }) => name === (asked?.name ?? usual)) ?? shown[0];
    const repeated = view.name === "read" && !Object.values(trace.sides).some((side) => side.grid);
    header.classList.toggle("repeated", repeated); // the view shows the texts itself
    fill(header, ...pageTitle(app, trace));
    fill(about, ...aboutTrace(app, trace), themeSwitch(app, draw));
    fill(
      tabs,
      ...shown.map((one) =>
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
    const [at, count] = [shown.findIndex(({ name }) => room.classList.contains(name)), shown.length];
    /** @type {Record<string, number | undefined>} */
    const next = { ArrowRight: (at + 1) % count, ArrowLeft: (at + count - 1) % count, Home: 0, End: count - 1 };
    const to = next[event.key];
    if (to === undefined) return;
    event.preventDefault();
    app.navigate({ view: shown[to].name, large: "" });
    document.getElementById(`tab-${shown[to].name}`)?.focus();
  });
  window.addEventListener("hashchange", () => {
    app.state = readState();
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme(app.state.theme);
    draw();
  });
  fill(root, header, make("main", {}, make("div", { class: "bar-line" }, tabs, about), room), live);
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
 * The texts of a trace.
 * @param {App} app
 * @param {Trace} trace
 */
function pageTitle(app, trace) {
  const sides = Object.values(trace.sides);
  const written = trace.written ? trace.sides[trace.written.side] : null;
  const first = trace.title || app.page.title || (sides[0].tokens.length < 200 ? textOf(sides[0]) : "");
  const output = written && written !== sides[0] && written.tokens.length < 200 ? textOf(written) : "";
  return [
    make("h1", { dir: directionOf(first) }, isolatedText(first || "Attention")),
    output && !first.includes(output)
      ? make("p", { class: "output", dir: directionOf(output) }, isolatedText(output))
      : null
  ];
}

/**
 * What a trace is of: the model, its heads, the numbers of tokens.
 * @param {App} app
 * @param {Trace} trace
 */
function aboutTrace(app, trace) {
  const heads = trace.attentions.reduce((sum, one) => sum + one.heads, 0);
  const tokens = Object.entries(trace.sides).map(([name, side]) => `${name}: ${plural(side.tokens.length, "token")}`);
  const names = app.traces.map((one, i) => /** @type {[string, string]} */ ([String(i), traceName(one, i)]));
  const about = [trace.model, plural(heads, "head")].filter(Boolean).join(" · ");
  return [
    make("p", { class: "quiet", title: tokens.join(", ") }, about),
    names.length > 1
      ? choice("Trace", names, String(traceNumber(app)), (value) =>
          app.navigate({
            trace: value,
            attention: "",
            head: "",
            row: "",
            column: "",
            node: "",
            word: "",
            x: "",
            y: "",
            zoom: ""
          })
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
    fill(place, failure(new Error(`This page cannot be shown: ${/** @type {Error} */ (error).message}`)));
  }
}
