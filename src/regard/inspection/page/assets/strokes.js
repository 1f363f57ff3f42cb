// What is drawn over and around the cells of a chart. Knows the chart; asks for nothing and changes nothing.

import { NAMED_FROM, columnAxis, rowAxis } from "./axes.js";
import { chance } from "./numbers.js";
import { ink } from "./colour.js";

/** @typedef {import("./chart.js").Chart} Chart */

/**
 * Lines between cells in the colour of the page, a cross in what is not finite, a dot in a zero.
 * @param {CanvasRenderingContext2D} pen
 * @param {Chart} chart
 */
export function drawCells(pen, chart) {
  const { view, plot, plane } = chart;
  const [bottom, right] = [
    Math.min(plane.rows, view.y + plot.height / view.zy),
    Math.min(plane.columns, view.x + plot.width / view.zx)
  ];
  pen.fillStyle = ink("paper");
  for (let i = Math.ceil(view.y); i < bottom; i++)
    pen.fillRect(plot.x, plot.y + (i - view.y) * view.zy - 0.5, plot.width, 1);
  for (let j = Math.ceil(view.x); j < right; j++)
    pen.fillRect(plot.x + (j - view.x) * view.zx - 0.5, plot.y, 1, plot.height);
  pen.strokeStyle = ink("paper");
  for (let i = Math.floor(view.y); i < bottom; i++)
    for (let j = Math.floor(view.x); j < right; j++) {
      const value = chart.valueAt(i, j);
      if (value === 0 && !plane.masked(i, j)) {
        pen.fillStyle = ink("soft");
        pen.fillRect(plot.x + (j - view.x + 0.5) * view.zx - 1, plot.y + (i - view.y + 0.5) * view.zy - 1, 2, 2);
      }
      if (value === undefined || value - value === 0) continue;
      const [x, y] = [plot.x + (j - view.x + 0.3) * view.zx, plot.y + (i - view.y + 0.3) * view.zy];
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + 0.4 * view.zx, y + 0.4 * view.zy);
      pen.moveTo(x + 0.4 * view.zx, y);
      pen.lineTo(x, y + 0.4 * view.zy);
      pen.stroke();
    }
}

/**
 * What is pinned and what is pointed at.
 * @param {CanvasRenderingContext2D} pen
 * @param {Chart} chart
 */
export function drawOutlines(pen, chart) {
  const { view, plot, plane } = chart;
  const { down, across } = chart.blocks();
  /** @param {number} row @param {number} column @param {number} rows @param {number} columns @param {number} line */
  const box = (row, column, rows, columns, line) => {
    const [x, y] = [plot.x + (column - view.x) * view.zx, plot.y + (row - view.y) * view.zy];
    for (const [colour, thick] of /** @type {[string, number][]} */ ([
      ["paper", line + 2],
      ["accent", line]
    ])) {
      pen.strokeStyle = ink(colour);
      pen.lineWidth = thick;
      pen.strokeRect(x, y, Math.max(2, columns * view.zx), Math.max(2, rows * view.zy));
    }
  };
  if (chart.pinned.row !== null) box(chart.pinned.row, 0, 1, plane.columns, 2);
  if (chart.pinned.column !== null) box(0, chart.pinned.column, plane.rows, 1, 2);
  if (chart.at)
    box(Math.floor(chart.at.row / down) * down, Math.floor(chart.at.column / across) * across, down, across, 2);
}

/**
 * Names, positions, and the numbers beside the rows.
 * @param {CanvasRenderingContext2D} pen
 * @param {Chart} chart
 */
export function drawEdges(pen, chart) {
  const { plane, plot, view } = chart;
  rowAxis(
    pen,
    {
      count: plane.rows,
      first: view.y,
      zoom: view.zy,
      start: plot.y,
      length: plot.height,
      name: plane.rowName,
      strong: (i) => i === chart.at?.row || i === chart.pinned.row
    },
    plot.x
  );
  columnAxis(
    pen,
    {
      count: plane.columns,
      first: view.x,
      zoom: view.zx,
      start: plot.x,
      length: plot.width,
      name: plane.columnName,
      strong: (j) => j === chart.at?.column || j === chart.pinned.column
    },
    plot.y,
    chart.names.columns
  );
  const { marks } = chart;
  if (!marks || view.zy < NAMED_FROM) return;
  const x = plot.x + Math.min(plot.width, plane.columns * view.zx) + 14;
  pen.textAlign = "left";
  pen.font = "11px " + ink("sans");
  pen.fillStyle = ink("soft");
  pen.fillText(marks.title, x, plot.y - 11);
  marks.values.forEach((value, i) => {
    const y = plot.y + (i - view.y + 0.5) * view.zy;
    if (y < plot.y || y > plot.y + plot.height || Number.isNaN(value)) return;
    pen.fillStyle = ink("line");
    pen.fillRect(x, y - 3, 60, 6);
    pen.fillStyle = ink("accent");
    pen.fillRect(x, y - 3, 60 * value, 6);
    pen.fillStyle = ink("soft");
    pen.fillText(chance(value), x + 67, y + 1);
  });
}
