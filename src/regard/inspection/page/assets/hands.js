// Pointer and keys on a chart. Knows what they do; the chart knows how.

import { clamp } from "./numbers.js";
import { moving } from "./projected.js";
import { told } from "./planes.js";

/** @param {import("./chart.js").Chart} chart */
export function handle(chart) {
  const { frame } = chart;
  const roaming = chart.options.manner === "roaming";
  /** @type {{x: number, y: number, from: {x: number, y: number, zx: number, zy: number}, moved: boolean} | null} */
  let held = null;

  frame.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { x: event.clientX, y: event.clientY, from: chart.view, moved: false };
    if (chart.movable) frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener("pointermove", (event) => {
    if (held && chart.movable) {
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      held.moved ||= Math.hypot(dx, dy) > 4;
      if (held.moved) {
        moving();
        chart.look({ ...held.from, x: held.from.x - dx / held.from.zx, y: held.from.y - dy / held.from.zy });
        return;
      }
    }
    const at = under(chart, event);
    chart.point(at);
    if (at) chart.options.onPoint?.(at.row, at.column);
  });
  frame.addEventListener("pointerup", (event) => {
    const at = under(chart, event);
    if (held && !held.moved && at) chart.options.onPick?.(at.row, at.column);
    held = null;
  });
  frame.addEventListener("pointercancel", () => {
    held = null;
  });
  frame.addEventListener("pointerleave", () => {
    held = null;
    if (document.activeElement !== frame) chart.point(null);
  });
  frame.addEventListener("blur", () => chart.point(null));
  frame.addEventListener(
    "wheel",
    (event) => {
      if (!roaming && !event.ctrlKey) return; // the wheel scrolls the page, except over a map that fills it
      event.preventDefault();
      const box = frame.getBoundingClientRect();
      moving();
      const step = clamp(-1, event.deltaY / (event.deltaMode ? 3 : 120), 1);
      chart.zoom(2 ** (-step / 2), event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false }
  );
  frame.addEventListener("keydown", (event) => press(chart, event, roaming ? !event.shiftKey : event.shiftKey));
}

/**
 * The cell under the pointer.
 * @param {import("./chart.js").Chart} chart
 * @param {PointerEvent} event
 */
function under(chart, event) {
  const { plot, view, plane } = chart;
  const box = chart.canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left - plot.x, event.clientY - box.top - plot.y];
  const [row, column] = [Math.floor(view.y + y / view.zy), Math.floor(view.x + x / view.zx)];
  const inside = x >= 0 && y >= 0 && x < plot.width && y < plot.height && row < plane.rows && column < plane.columns;
  return inside ? { row, column } : null;
}

/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @param {import("./chart.js").Chart} chart
 * @param {KeyboardEvent} event
 * @param {boolean} panning what the arrow keys move: the map, or the cell
 */
function press(chart, event, panning) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const { view, plot, plane } = chart;
  const arrow = ARROWS[event.key];
  if (arrow && panning) {
    chart.look({
      ...view,
      x: view.x + (arrow[1] * plot.width) / 8 / view.zx,
      y: view.y + (arrow[0] * plot.height) / 8 / view.zy
    });
  } else if (arrow) {
    const { down, across } = chart.blocks();
    const at = chart.at ?? {
      row: Math.floor(view.y) - arrow[0] * down,
      column: Math.floor(view.x) - arrow[1] * across
    };
    moveTo(
      chart,
      clamp(0, at.row + arrow[0] * down, plane.rows - 1),
      clamp(0, at.column + arrow[1] * across, plane.columns - 1)
    );
  } else if (event.key === "+" || event.key === "=") {
    chart.zoom(1.5);
  } else if (event.key === "-") {
    chart.zoom(1 / 1.5);
  } else if (event.key === "0" || event.key === "Home") {
    chart.look({ x: 0, y: 0, zx: chart.fit.x, zy: chart.fit.y });
  } else if ((event.key === "Enter" || event.key === " ") && chart.at) {
    chart.options.onPick?.(chart.at.row, chart.at.column);
  } else return;
  moving();
  event.preventDefault();
}

/**
 * Point at a cell by key: bring it into view, and read it aloud.
 * @param {import("./chart.js").Chart} chart
 * @param {number} row
 * @param {number} column
 */
export function moveTo(chart, row, column) {
  const { view, plot, plane } = chart;
  const [wide, high] = [plot.width / view.zx, plot.height / view.zy];
  chart.look({ ...view, x: clamp(column + 1 - wide, view.x, column), y: clamp(row + 1 - high, view.y, row) });
  chart.point({ row, column });
  chart.options.onPoint?.(row, column);
  const said = told(plane, row, column, chart.valueAt(row, column));
  chart.desk.say(`${plane.rowName(row)} to ${plane.columnName(column)}: ${said}`);
}
