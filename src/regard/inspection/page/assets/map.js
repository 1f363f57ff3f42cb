// The view "Map": a map of any size as a window that pans and zooms.

import { selectedAttention } from "./alignment.js";
import { Chart, focusCell } from "./chart.js";
import { attentionChoice, closing, headChoice, textButton, mutedText, notice, scaleChoice, sizeText, thumbnail, traceNumber } from "./controls.js";
import { fill, uniqueId, make, pickNumber } from "./dom.js";
import { clamp, formatCount, formatWeight } from "./numbers.js";
import { headPlane } from "./planes.js";
import { showScore } from "./scores.js";
import { VIEWS } from "./views.js";

VIEWS.push({
  name: "map",
  title: "Map",
  open(app, room) {
    const number = traceNumber(app);
    const trace = app.traces[number];
    const usual = selectedAttention(trace, {});
    const attention = pickNumber(app.state.attention, trace.attentions.length, usual.attention);
    const one = trace.attentions[attention];
    const head = pickNumber(app.state.head, one.heads, attention === usual.attention ? Math.max(0, usual.head) : 0);
    const plane = headPlane(app, number, attention, head);
    const scale = scaleChoice(app, plane.rows * plane.columns > 1 << 14 ? "log" : "linear");
    const where = make("p", { class: "quiet where" });
    const small = make("div", { class: "minimap", "aria-hidden": "true" });
    const rectangle = make("span", { class: "rectangle" });
    const score = make("section", { class: "weights score", "aria-live": "polite" });
    let due = 0;
    const chart = new Chart(app, plane, {
      manner: "roaming",
      shape: scale.shape,
      whole: scale.whole,
      onPick: (row, column) => {
        if (plane.levels[0] === 1) void showScore(app, { trace: number, attention, head, row, column }, score);
      },
      onMove: () => {
        const { x, y, zx, zy } = chart.view;
        const [wide, high] = [
          Math.min(plane.columns - x, chart.plot.width / zx),
          Math.min(plane.rows - y, chart.plot.height / zy)
        ];
        where.textContent =
          `Rows ${span(y, high)} of ${formatCount(plane.rows)}, ` +
          `columns ${span(x, wide)} of ${formatCount(plane.columns)}.`;
        /** @type {[keyof CSSStyleDeclaration & ("left" | "top" | "width" | "height"), number][]} */
        const edges = [
          ["left", x / plane.columns],
          ["top", y / plane.rows],
          ["width", wide / plane.columns],
          ["height", high / plane.rows]
        ];
        for (const [edge, part] of edges) rectangle.style[edge] = `${part * 100}%`;
        clearTimeout(due);
        due = window.setTimeout(
          () =>
            app.updateState({
              x: x.toFixed(1),
              y: y.toFixed(1),
              zoom: zx > chart.fit.x * 1.001 ? zx.toPrecision(4) : ""
            }),
          300
        );
      }
    });
    app.onClose(() => clearTimeout(due));
    fill(
      room,
      make(
        "div",
        { class: "controls" },
        attentionChoice(app, number, String(attention), (value) =>
          app.navigate({ attention: value, head: "", x: "", y: "", zoom: "" })
        ),
        headChoice(one, String(head), (value) => app.navigate({ head: value })),
        scale.element,
        goTo(chart)
      ),
      one.data.kind === "overview"
        ? notice(
            "This file has only an overview of this map. To zoom in to single weights: " +
              `regard look ${app.page.file ?? "FILE"}`
          )
        : null,
      make(
        "div",
        { class: "split" },
        make("div", { class: "main" }, chart.element),
        make(
          "aside",
          { class: "aside", "aria-label": "Position on the map" },
          make(
            "div",
            { class: "buttons", role: "group", "aria-label": "Zoom" },
            iconic("+", "Zoom in", () => chart.zoom(2)),
            iconic("−", "Zoom out", () => chart.zoom(0.5)),
            iconic("All", "Show all", () => chart.setView({ x: 0, y: 0, zx: chart.fit.x, zy: chart.fit.y }))
          ),
          small,
          where,
          score,
          rounding(one.data),
          mutedText(
            `${sizeText(trace, one)} weights. Drag or use the arrow keys to move, Ctrl and the wheel or + and − to ` +
              "zoom, 0 to show all; on a touch screen, two fingers. Shift and the arrow keys move the selected cell; " +
              "a click or Enter shows its score by dimension."
          )
        )
      )
    );
    chart.layout();
    const zoom = Number(app.state.zoom);
    if (zoom > 0) {
      const ratio = chart.fit.y / chart.fit.x;
      chart.setView({ x: Number(app.state.x) || 0, y: Number(app.state.y) || 0, zx: zoom, zy: zoom * ratio });
    }
    const view = closing(app);
    thumbnail(plane, 180, scale.shape).then(
      ({ canvas }) => {
        if (!view.closed) small.append(canvas, rectangle);
      },
      () => undefined
    );
  }
});

/**
 * @param {number} from
 * @param {number} length
 */
function span(from, length) {
  return `${formatCount(Math.floor(from))} to ${formatCount(Math.max(0, Math.ceil(from + length) - 1))}`;
}

/**
 * How exact weights are that the page computes itself.
 * @param {Data} data
 */
function rounding(data) {
  if (data.kind !== "projected" || data.error === undefined) return null;
  return mutedText(
    `Computed here from queries and keys of ${data.bits} bits: ` +
      `weights differ by at most ${formatWeight(data.error)} in the rows that were compared.`
  );
}

/**
 * @param {string} sign
 * @param {string} label
 * @param {() => void} work
 */
function iconic(sign, label, work) {
  const button = textButton(sign, work);
  button.setAttribute("aria-label", label);
  button.title = label;
  return button;
}

/**
 * Two numbers to jump to.
 * @param {Chart} chart
 */
function goTo(chart) {
  const { plane } = chart;
  const [rowId, columnId] = [uniqueId("row"), uniqueId("column")];
  const row = make("input", { id: rowId, type: "number", min: 0, max: plane.rows - 1, value: 0 });
  const column = make("input", { id: columnId, type: "number", min: 0, max: plane.columns - 1, value: 0 });
  const go = () => {
    const [i, j] = [
      clamp(0, Math.floor(row.valueAsNumber) || 0, plane.rows - 1),
      clamp(0, Math.floor(column.valueAsNumber) || 0, plane.columns - 1)
    ];
    const most = 22 / plane.levels[0];
    const [zx, zy] = [Math.max(most, chart.fit.x), Math.max(most, chart.fit.y)];
    chart.setView({ x: j - chart.plot.width / zx / 2, y: i - chart.plot.height / zy / 2, zx, zy });
    focusCell(chart, i, j);
  };
  return make(
    "form",
    {
      class: "go",
      submit: (/** @type {Event} */ event) => {
        event.preventDefault();
        go();
      }
    },
    make("div", { class: "choice" }, make("label", { for: rowId }, "Row"), row),
    make("div", { class: "choice" }, make("label", { for: columnId }, "Column"), column),
    make("button", { class: "plain" }, "Go there")
  );
}
