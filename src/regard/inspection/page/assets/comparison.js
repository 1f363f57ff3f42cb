// The view "Two side by side": two heads, attentions or traces on one scale, and their difference where they have the
// same shape.

import { defaultAttention } from "./alignment.js";
import { Chart } from "./chart.js";
import { attentionChoice, choice, headChoice, mutedText, scaleChoice } from "./controls.js";
import { fill, make, pickNumber } from "./dom.js";
import { differencePlane, headPlane } from "./planes.js";

/**
 * @param {App} app
 * @param {Plane[]} planes two
 * @param {string[]} titles of the three
 * @param {import("./chart.js").ChartOptions} options
 * @param {HTMLElement} room
 */
export function comparisonCharts(app, planes, titles, options, room) {
  const [first, second] = planes;
  const alike = first.rows === second.rows && first.columns === second.columns;
  const ranges = new Map();
  /** @type {Chart[]} */
  const charts = planes.map((plane) => new Chart(app, plane, { ...options, ranges, onPoint: follow }));
  for (const chart of charts) chart.group = charts.slice(0, 2);
  if (alike)
    charts.push(
      new Chart(app, differencePlane(first, second), { ...options, whole: false, what: titles[2], onPoint: follow })
    );
  /** @param {number} row @param {number} column */
  function follow(row, column) {
    if (alike) for (const chart of charts) chart.point({ row, column });
  }
  fill(
    room,
    alike
      ? null
      : mutedText(
          `The first has ${first.rows} × ${first.columns} cells and the second ${second.rows} × ${second.columns}: ` +
            "there is no difference map."
        ),
    alike ? mutedText(nameWarning(first, second)) : null,
    make(
      "div",
      { class: "trio" },
      ...charts.map((chart, i) => make("section", {}, make("h3", {}, titles[i]), chart.element))
    )
  );
  for (const chart of charts) chart.layout();
}

/**
 * A warning where the rows or columns of two small planes have other names.
 * @param {Plane} first
 * @param {Plane} second
 */
function nameWarning(first, second) {
  if (first.rows * first.columns > 1 << 16) return "";
  let other = 0;
  for (let i = 0; i < first.rows; i++) if (first.rowName(i) !== second.rowName(i)) other++;
  for (let j = 0; j < first.columns; j++) if (first.columnName(j) !== second.columnName(j)) other++;
  return other
    ? `${other} of the ${first.rows + first.columns} row and column labels differ: ` +
        "there the difference compares different tokens."
    : "";
}

/**
 * What one half shows, from the state: the second half has keys that end in 2.
 * @param {App} app
 * @param {"" | "2"} half
 */
function selectedHalf(app, half) {
  const { state, traces } = app;
  const first = half === "" ? null : selectedHalf(app, "");
  const trace = pickNumber(
    state["trace" + half],
    traces.length,
    first ? Math.min(traces.length - 1, first.trace + 1) : 0
  );
  const attentions = traces[trace].attentions;
  const usual = first && first.attention < attentions.length ? first.attention : defaultAttention(traces[trace]);
  const attention = pickNumber(state["attention" + half], attentions.length, usual);
  const beside =
    first && first.trace === trace && first.attention === attention
      ? (first.head + 1) % attentions[attention].heads
      : (first?.head ?? 0);
  const head = pickNumber(
    state["head" + half],
    attentions[attention].heads,
    Math.min(beside, attentions[attention].heads - 1)
  );
  return { trace, attention, head };
}

/**
 * @param {App} app
 * @param {"" | "2"} half
 * @param {string} title
 */
function picker(app, half, title) {
  const chosen = selectedHalf(app, half);
  const names = app.traces.map((trace, i) => /** @type {[string, string]} */ ([String(i), traceName(trace, i)]));
  return make(
    "fieldset",
    { class: "controls" },
    make("legend", {}, title),
    app.traces.length > 1
      ? choice("Trace", names, String(chosen.trace), (value) =>
          app.navigate({ ["trace" + half]: value, ["attention" + half]: "", ["head" + half]: "" })
        )
      : null,
    attentionChoice(app, chosen.trace, String(chosen.attention), (value) =>
      app.navigate({ ["attention" + half]: value, ["head" + half]: "" })
    ),
    headChoice(app.traces[chosen.trace].attentions[chosen.attention], String(chosen.head), (value) =>
      app.navigate({ ["head" + half]: value })
    )
  );
}

/**
 * @param {Trace} trace
 * @param {number} number
 */
export function traceName(trace, number) {
  return `${number + 1}: ${[trace.model, trace.title].filter(Boolean).join(" · ") || "trace"}`.slice(0, 80);
}

/** @type {View} */
export const pairView = {
  name: "pair",
  title: "Two side by side",
  open(app, room) {
    const halves = [selectedHalf(app, ""), selectedHalf(app, "2")];
    const planes = halves.map(({ trace, attention, head }) => headPlane(app, trace, attention, head));
    const { element, shape, whole } = scaleChoice(
      app,
      planes[0].rows * planes[0].columns > 1 << 16 ? "log" : "linear"
    );
    const models = halves.map(({ trace }) => app.traces[trace].model);
    const titles = planes.map(({ name }, i) => {
      if (app.traces.length < 2) return name;
      return `${models[0] !== models[1] && models[i] ? models[i] : `Trace ${halves[i].trace + 1}`}: ${name}`;
    });
    const charts = make("div");
    const pickers = make("div", { class: "pickers" }, picker(app, "", "First"), picker(app, "2", "Second"), element);
    fill(room, make("h2", { class: "visually-hidden" }, "Two side by side"), pickers, charts);
    comparisonCharts(app, planes, [...titles, "Difference: second − first"], { shape, whole, tall: 520 }, charts);
  }
};
