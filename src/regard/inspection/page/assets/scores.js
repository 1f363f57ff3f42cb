// The sheet of a weight: the product of its query and its key, dimension by dimension, and what makes the weight of it.
// Queries and keys are with the server; a file says how to get them.

import { closing, failure, mutedText } from "./controls.js";
import { fill, isolatedText, make } from "./dom.js";
import { formatFixed, formatWeight, largest, plural } from "./numbers.js";
import { visibleText } from "./text.js";
import { sendRequest } from "./weights.js";

const MAX_BARS = 12; // dimensions before the others

/**
 * What the server says of one weight: score = scale · Σ products + bias; or the reason why there are no products.
 * @typedef {{products: number[], product: number, scale: number, bias: number | null, score: number, masked: boolean,
 *   weight: number, reason?: string}} Score
 */

/**
 * @param {App} app
 * @param {{trace: number, attention: number, head: number, row: number, column: number}} place
 * @param {HTMLElement} room
 */
export async function showScore(app, place, room) {
  const trace = app.traces[place.trace];
  const one = trace.attentions[place.attention];
  const [row, column] = [trace.sides[one.queries].tokens[place.row], trace.sides[one.keys].tokens[place.column]];
  const title = make("h3", {}, isolatedText(visibleText(row)), " → ", isolatedText(visibleText(column)));
  const later = (/** @type {string} */ text) => fill(room, title, mutedText(text));
  if (!app.page.served)
    return later(
      "To see which dimensions of query and key make this weight, let regard serve the page: " +
        `regard look ${app.page.file ?? "MODEL TEXT"}`
    );
  if (app.modelOf(place.trace) !== place.trace)
    return later("The server keeps the queries and keys of the first text alone. Look at this text to see them.");
  const view = closing(app);
  const asked = new URLSearchParams(Object.entries(place).map(([name, value]) => [name, String(value)]));
  try {
    const answer = await sendRequest("score.json?" + asked.toString());
    if (!view.closed) fill(room, title, ...scoreParts(one, answer));
  } catch (error) {
    fill(room, title, failure(/** @type {Error} */ (error)));
  }
}

/**
 * @param {Attention} attention
 * @param {Score} score
 */
function scoreParts(attention, { products, product, scale, bias, score, masked, weight, reason }) {
  if (reason) return [mutedText(reason)];
  const order = largest(products, products.length);
  const most = Math.abs(products[order[0]]) || 1;
  const rest = order.slice(MAX_BARS);
  const bars = (/** @type {number[]} */ some) => make("ol", {}, ...some.map((d) => dimension(d, products[d], most)));
  const sum = rest.reduce((total, d) => total + products[d], 0);
  return [
    make(
      "p",
      { class: "sum" },
      "q·k = ",
      make("strong", { class: "number" }, formatFixed(product, 4)),
      `, the sum over ${plural(products.length, "dimension")}. Times the scale ${formatFixed(scale, 4)}` +
        (bias === null ? "" : `, plus the bias ${formatFixed(bias, 4)}`) +
        ", the score is ",
      make("strong", { class: "number" }, formatFixed(score, 4)),
      masked
        ? ". The key is masked: the score is not used, and the weight is 0."
        : `. Of it and the other scores of the row, ${attention.normalize ?? "softmax"} makes the weight ` +
            `${formatWeight(weight)}.`
    ),
    bars(order.slice(0, MAX_BARS)),
    rest.length
      ? make(
          "details",
          {},
          make("summary", {}, `The other ${rest.length} add up to ${formatFixed(sum, 4)}`),
          bars(rest)
        )
      : null
  ];
}

/**
 * One dimension: its number, a bar by its size, coloured by its sign, and the product.
 * @param {number} number
 * @param {number} product
 * @param {number} most
 */
function dimension(number, product, most) {
  const bar = make("span", { class: product < 0 ? "bar below" : "bar" });
  bar.style.width = `${(Math.abs(product) / most) * 100}%`;
  return make(
    "li",
    {},
    make("span", {}, `dimension ${number}`),
    make("span", { class: "track", "aria-hidden": "true" }, bar),
    make("span", { class: "number" }, (product > 0 ? "+" : "") + formatFixed(product, 4))
  );
}
