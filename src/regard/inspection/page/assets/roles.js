// What each head of the model does over many sentences: its roles and its cost, as `regard look MODEL --heads DATA`
// measures them (heads.json, inspection/heads.py).

import { isolatedText, make } from "./dom.js";
import { formatFixed, formatPercent, plural } from "./numbers.js";

/** @typedef {{head: MeasuredHead, even: Record<string, number>}} Known */

/** @type {Record<string, string>} the roles as they are shown; ROLE_NAMES of inspection/heads.py */
export const ROLE_NAMES = {
  itself: "itself",
  previous: "previous token",
  next: "next token",
  first: "first token",
  separators: "separators",
  same: "same token",
  after_same: "after the same token",
  in_order: "in order",
  gold: "gold links"
};

/**
 * What was measured of a head; null if nothing was.
 * @param {Trace} trace
 * @param {number} attention
 * @param {number} head
 * @returns {Known | null}
 */
export function knownHead(trace, attention, head) {
  const found = trace.heads?.attentions.find(({ name }) => name === trace.attentions[attention].name);
  return found?.heads[head] ? { head: found.heads[head], even: found.even } : null;
}

/** @param {string} role */
export function roleName(role) {
  return Object.hasOwn(ROLE_NAMES, role) ? ROLE_NAMES[role] : role;
}

/**
 * The roles of a head, the strongest first: by how far the score exceeds that of even weights, (s − e) / (1 − e).
 * @param {Known} known
 */
export function rankedRoles({ head, even }) {
  const lift = (/** @type {string} */ role) => (head.roles[role] - even[role]) / Math.max(1e-9, 1 - even[role]);
  return Object.keys(head.roles).sort((a, b) => lift(b) - lift(a));
}

/**
 * The role that a head has, with its score; in brackets the strongest one of a head that has none.
 * @param {Known} known
 */
export function roleLine(known) {
  const { head } = known;
  const role = head.role ?? rankedRoles(known)[0];
  if (role === undefined) return null;
  const text = `${roleName(role)} ${formatPercent(head.roles[role]).replace(" ", "\u00a0")}`;
  return make("span", { class: head.role ? "named" : "" }, head.role ? text : `(${text})`);
}

/**
 * The loss without the head; one that may be chance is quiet.
 * @param {MeasuredHead} head
 */
export function costLine({ cost, cost_error }) {
  const title = `The loss rises by ${signed(cost)} ± ${formatFixed(cost_error, 4)} nats without this head`;
  const strong = Math.abs(cost) > 2 * cost_error && cost !== 0;
  return make("span", { class: strong ? "cost strong" : "cost", title }, `cost ${signed(cost)} nats`);
}

/** @param {number} cost */
function signed(cost) {
  return (cost > 0 ? "+" : "") + formatFixed(cost, 4);
}

/**
 * All that was measured of a head.
 * @param {MeasuredHeads} measured
 * @param {Known} known
 */
export function roleTable({ data, sentences, loss }, known) {
  const { head, even } = known;
  const cells = (/** @type {string} */ role) => [head.roles[role], even[role]].map((value) => formatFixed(value, 4));
  return make(
    "div",
    { class: "facts" },
    make(
      "p",
      {},
      `Over ${plural(sentences, "sentence")} of `,
      isolatedText(data),
      `: without this head the loss, ${formatFixed(loss, 3)} nats, changes by `,
      make("strong", { class: "number" }, signed(head.cost)),
      ` ± ${formatFixed(head.cost_error, 4)}.`
    ),
    make(
      "table",
      { class: "roles" },
      make("caption", {}, "Over these sentences: mean weight on the places of a role, and that of even attention"),
      make(
        "tbody",
        {},
        ...rankedRoles(known).map((role) =>
          make(
            "tr",
            { class: role === head.role ? "strong" : "" },
            make("th", { scope: "row" }, roleName(role)),
            ...cells(role).map((text, i) => make("td", { class: i ? "quiet" : "" }, text))
          )
        )
      )
    )
  );
}
