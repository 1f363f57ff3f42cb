// Two charts on one scale, and a third of their difference where they have the same shape. Knows charts and planes.

import { Chart } from "./chart.js";
import { differencePlane } from "./planes.js";
import { fill, make } from "./dom.js";
import { quiet } from "./pieces.js";

/**
 * @param {Desk} desk
 * @param {Plane[]} planes two
 * @param {string[]} titles of the three
 * @param {import("./chart.js").ChartOptions} options
 * @param {HTMLElement} room
 */
export function trio(desk, planes, titles, options, room) {
  const [first, second] = planes;
  const alike = first.rows === second.rows && first.columns === second.columns;
  const ranges = new Map();
  /** @type {Chart[]} */
  const charts = planes.map((plane) => new Chart(desk, plane, { ...options, ranges, onPoint: follow }));
  for (const chart of charts) chart.group = charts.slice(0, 2);
  if (alike)
    charts.push(
      new Chart(desk, differencePlane(first, second), { ...options, whole: false, what: titles[2], onPoint: follow })
    );
  /** @param {number} row @param {number} column */
  function follow(row, column) {
    if (alike) for (const chart of charts) chart.point({ row, column });
  }
  fill(
    room,
    alike
      ? null
      : quiet(
          `The first has ${first.rows} × ${first.columns} cells and the second ${second.rows} × ${second.columns}: ` +
            "there is no difference cell by cell."
        ),
    alike ? quiet(otherNames(first, second)) : null,
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
function otherNames(first, second) {
  if (first.rows * first.columns > 1 << 16) return "";
  let other = 0;
  for (let i = 0; i < first.rows; i++) if (first.rowName(i) !== second.rowName(i)) other++;
  for (let j = 0; j < first.columns; j++) if (first.columnName(j) !== second.columnName(j)) other++;
  return other
    ? `${other} of the ${first.rows + first.columns} names of rows and columns differ: ` +
        "there the difference is between unlike things."
    : "";
}
