// The view "Compare": two heads, attentions or traces on one scale, the outputs of both, and the difference of the maps
// for the words that both have.

import { Chart } from "./chart.js";
import { attentionChoice, choice, closing, failure, headChoice, mutedText, scaleChoice, traceName } from "./controls.js";
import { fill, isolatedText, make, pickNumber } from "./dom.js";
import { alignmentMatrix, defaultAttention } from "./alignment.js";
import { differencePlane, headPlane, isSmall, namesOf } from "./planes.js";
import { directionOf, pairWords, textOf } from "./text.js";
import { VIEWS } from "./views.js";

const MAX_PAIRED = 1 << 16; // cells of a map whose rows and columns are paired by their names

/**
 * Two charts on one scale, and their difference where they share rows and columns.
 * @param {App} app
 * @param {Plane[]} planes two
 * @param {string[]} titles of the three
 * @param {import("./chart.js").ChartOptions} options
 * @param {HTMLElement} room
 */
export function comparisonCharts(app, planes, titles, options, room) {
  const [first, second] = planes;
  const { pairs, note } = pairPlanes(first, second);
  const alike = first.rows === second.rows && first.columns === second.columns;
  const ranges = new Map();
  /** @type {Chart[]} */
  const charts = planes.map((plane) => new Chart(app, plane, { ...options, ranges, onPoint: follow }));
  for (const chart of charts) chart.group = charts.slice(0, 2);
  const difference = pairs && (pairs === "same" || (pairs.rows.length && pairs.columns.length));
  if (difference)
    charts.push(
      new Chart(app, differencePlane(first, second, pairs === "same" ? undefined : pairs), {
        ...options,
        whole: false,
        what: titles[2],
        onPoint: pairs === "same" ? follow : undefined
      })
    );
  /** @param {number} row @param {number} column */
  function follow(row, column) {
    if (alike && pairs === "same") for (const chart of charts) chart.point({ row, column });
  }
  fill(
    room,
    note ? mutedText(note) : null,
    make(
      "div",
      { class: "trio" },
      ...charts.map(({ plane, element }, i) =>
        make("section", {}, make("h3", { title: plane.code }, titles[i]), element)
      )
    )
  );
  for (const chart of charts) chart.layout();
}

/**
 * The rows and columns that two planes share, by their names: a longest common subsequence.
 * @param {Plane} first
 * @param {Plane} second
 * @returns {{pairs: "same" | {rows: [number, number][], columns: [number, number][]} | null, note: string}}
 */
export function pairPlanes(first, second) {
  const alike = first.rows === second.rows && first.columns === second.columns;
  if (Math.max(first.rows * first.columns, second.rows * second.columns) > MAX_PAIRED) {
    const sizes = [first, second].map((one) => `${one.rows} × ${one.columns}`);
    const note = `The first has ${sizes[0]} cells and the second ${sizes[1]}: there is no difference map.`;
    return alike ? { pairs: "same", note: "" } : { pairs: null, note };
  }
  const rows = [first, second].map((one) => namesOf(one.rows, one.rowName));
  const columns = [first, second].map((one) => namesOf(one.columns, one.columnName));
  const pairs = { rows: pairWords(rows[0], rows[1]), columns: pairWords(columns[0], columns[1]) };
  if (alike && pairs.rows.length === first.rows && pairs.columns.length === first.columns)
    return { pairs: "same", note: "" };
  if (!pairs.rows.length || !pairs.columns.length)
    return { pairs: null, note: "The two share no row or no column: there is no difference map." };
  return {
    pairs,
    note:
      `The difference is of the ${pairs.rows.length} rows and ${pairs.columns.length} columns that both have, paired ` +
      "by their names in order."
  };
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
 * The outputs of two traces, one below the other.
 * @param {App} app
 * @param {number[]} numbers
 */
function outputLines(app, numbers) {
  if (numbers[0] === numbers[1]) return null;
  return make(
    "dl",
    { class: "outputs" },
    ...numbers.flatMap((number) => {
      const trace = app.traces[number];
      const text = trace.written ? textOf(trace.sides[trace.written.side]) : (trace.title ?? "");
      return [
        make("dt", { class: "quiet" }, traceName(trace, number)),
        make("dd", { dir: directionOf(text) }, isolatedText(text.length > 2000 ? text.slice(0, 2000) + "…" : text))
      ];
    })
  );
}

VIEWS.push({
  name: "compare",
  title: "Compare",
  open(app, room) {
    const halves = [selectedHalf(app, ""), selectedHalf(app, "2")];
    const charts = make("div");
    const sizes = halves.map(({ trace, attention }) => app.traces[trace].attentions[attention]);
    const small = halves.every(({ trace }, i) => isSmall(app.traces[trace], sizes[i]));
    const { element, shape, whole } = scaleChoice(app, small ? "linear" : "log");
    const models = halves.map(({ trace }) => app.traces[trace].model);
    const pickers = make("div", { class: "pickers" }, picker(app, "", "First"), picker(app, "2", "Second"), element);
    const outputs = outputLines(app, halves.map(({ trace }) => trace));
    fill(room, make("h2", { class: "visually-hidden" }, "Compare"), outputs, pickers, charts);
    const view = closing(app);
    const words = halves[0].trace !== halves[1].trace && small && app.state.units !== "tokens";
    Promise.all(
      halves.map(async ({ trace, attention, head }) =>
        words
          ? (await alignmentMatrix(app, trace, { attention, head, offset: 0 }, "words")).plane
          : headPlane(app, trace, attention, head)
      )
    ).then(
      (planes) => {
        if (view.closed) return;
        const titles = planes.map(({ name }, i) => {
          if (app.traces.length < 2) return name;
          return `${models[0] !== models[1] && models[i] ? models[i] : `Trace ${halves[i].trace + 1}`}: ${name}`;
        });
        comparisonCharts(app, planes, [...titles, "Difference: second − first"], { shape, whole, tall: 520 }, charts);
      },
      (error) => fill(charts, failure(error))
    );
  }
});
