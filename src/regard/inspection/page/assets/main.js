// The page: reads its document, and puts a title, the tabs and the view that the address asks for in place.

import { Embedded, Served } from "./source.js";
import { alignmentView } from "./alignment.js";
import { choice, traceNumber } from "./pieces.js";
import { several } from "./numbers.js";
import { fill, isolated, make } from "./dom.js";
import { forgetInks, isDark } from "./colour.js";
import { headsView } from "./heads.js";
import { isSmall } from "./planes.js";
import { longView } from "./long.js";
import { nameOf, pairView } from "./pair.js";
import { readState, writeState } from "./state.js";
import { textOf } from "./text.js";
import { treeView } from "./tree.js";
import { usualAttention } from "./alignment.js";
import { whatIfView } from "./what_if.js";

const VIEWS = [alignmentView, headsView, treeView, whatIfView, longView, pairView];

/** @returns {Page} */
function readPage() {
  const element = /** @type {HTMLElement} */ (document.getElementById("page"));
  const page = JSON.parse(element.textContent ?? "");
  element.textContent = ""; // it may be large, and is not needed twice
  if (page.version !== 1) throw new Error(`This page is of version ${page.version}, which its script does not know.`);
  return page;
}

/** @param {HTMLElement} app */
function begin(app) {
  const page = readPage();
  const room = make("div", { id: "view", role: "tabpanel", tabindex: "-1" });
  const live = make("div", { class: "unseen", "aria-live": "polite", role: "status" });
  const header = make("header", { class: "page" });
  const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
  const origins = page.traces.map((_, i) => i);
  /** @type {(() => void)[]} */
  let leaving = [];
  let saying = 0;
  /** @type {Desk} */
  const desk = {
    page,
    traces: page.traces,
    state: readState(),
    source: page.served ? new Served(page.traces) : new Embedded(page.traces),
    go(change) {
      desk.note(change);
      draw();
    },
    note(change) {
      for (const [key, value] of Object.entries(change))
        if (value) desk.state[key] = value;
        else delete desk.state[key];
      writeState(desk.state);
    },
    say(text) {
      clearTimeout(saying);
      saying = window.setTimeout(() => {
        live.textContent = text;
      }, 120);
    },
    add(trace, of) {
      origins.push(origins[of]);
      return page.traces.push(trace) - 1;
    },
    modelOf: (number) => origins[number],
    leaving(work) {
      leaving.push(work);
    }
  };

  function draw() {
    for (const work of leaving) work();
    leaving = [];
    const held = heldBy(document.activeElement);
    const trace = desk.traces[traceNumber(desk)];
    const view =
      VIEWS.find(({ name }) => name === desk.state.view) ??
      (isSmall(trace, trace.attentions[usualAttention(trace)]) ? alignmentView : longView);
    fill(header, ...title(desk, trace), themeSwitch(desk, draw));
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
            click: () => desk.go({ view: one.name, large: "" })
          },
          one.title
        )
      )
    );
    room.setAttribute("aria-labelledby", `tab-${view.name}`);
    room.className = `view ${view.name}`;
    fill(room);
    view.open(desk, room);
    held?.();
  }

  tabs.addEventListener("keydown", (event) => {
    const [at, count] = [VIEWS.findIndex(({ name }) => room.classList.contains(name)), VIEWS.length];
    /** @type {Record<string, number | undefined>} */
    const next = { ArrowRight: (at + 1) % count, ArrowLeft: (at + count - 1) % count, Home: 0, End: count - 1 };
    const to = next[event.key];
    if (to === undefined) return;
    event.preventDefault();
    desk.go({ view: VIEWS[to].name, large: "" });
    document.getElementById(`tab-${VIEWS[to].name}`)?.focus();
  });
  window.addEventListener("hashchange", () => {
    desk.state = readState();
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme(desk.state.theme);
    draw();
  });
  fill(app, header, make("main", {}, tabs, room), live);
  applyTheme(desk.state.theme);
  draw();
}

/**
 * A page that is drawn again gives the focus back to the control that had it: by its label, for it is another element.
 * @param {Element | null} element
 */
function heldBy(element) {
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
 * @param {Desk} desk
 * @param {Trace} trace
 */
function title(desk, trace) {
  const sides = Object.values(trace.sides);
  const written = trace.written ? trace.sides[trace.written.side] : null;
  const first = trace.title || desk.page.title || (sides[0].tokens.length < 200 ? textOf(sides[0]) : "");
  const output = written && written !== sides[0] && written.tokens.length < 200 ? textOf(written) : "";
  const heads = trace.attentions.reduce((sum, one) => sum + one.heads, 0);
  const names = desk.traces.map((one, i) => /** @type {[string, string]} */ ([String(i), nameOf(one, i)]));
  return [
    make(
      "div",
      { class: "titles" },
      make("h1", { dir: "auto" }, isolated(first || "Where it looked")),
      output && output !== first ? make("p", { class: "output", dir: "auto" }, isolated(output)) : null,
      make(
        "p",
        { class: "quiet" },
        [
          trace.model,
          `${several(trace.attentions.length, "attention")}, ${several(heads, "head")}`,
          Object.entries(trace.sides)
            .map(([name, side]) => `${name}: ${several(side.tokens.length, "token")}`)
            .join(", ")
        ]
          .filter(Boolean)
          .join(" · ")
      )
    ),
    names.length > 1
      ? choice("Trace", names, String(traceNumber(desk)), (value) =>
          desk.go({ trace: value, attention: "", head: "", row: "", column: "", node: "", x: "", y: "", zoom: "" })
        )
      : null
  ];
}

/**
 * @param {Desk} desk
 * @param {() => void} draw
 */
function themeSwitch(desk, draw) {
  const to = isDark() ? "light" : "dark";
  return make(
    "button",
    {
      type: "button",
      class: "plain theme",
      click: () => {
        desk.note({ theme: to });
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
  forgetInks();
}

const place = document.getElementById("app");
if (place) {
  try {
    begin(place);
  } catch (error) {
    fill(
      place,
      make("p", { class: "wrong", role: "alert" }, `This page cannot be shown: ${/** @type {Error} */ (error).message}`)
    );
  }
}
