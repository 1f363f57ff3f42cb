// What stands beside the words of the view "Read": all heads as small maps to look through, and the results of the
// search with the number that they are ranked by.

import { selectedAttention } from "./alignment.js";
import { closing, mutedText, thumbnail } from "./controls.js";
import { isolatedText, isTouched, make } from "./dom.js";
import { formatFixed, formatPercent, plural } from "./numbers.js";
import { attentionTitle, headPlane } from "./planes.js";
import { partingOf, pathTo, rankingOf, tokensOf } from "./search.js";
import { directionOf, joinTokens } from "./text.js";
import { yieldToBrowser } from "./weights.js";

const MAX_STRIP = 160; // heads beside the text
const EDGE = 40; // pixels of a small map

/** @typedef {{attention: number, head: number, element: HTMLElement}} Mini */
/**
 * What a head does: it is looked through while `wanted`, left, or kept in the address.
 * @typedef {{peek: (attention: number, head: number, wanted: () => boolean) => Promise<void>, leave: () => void,
 *   keep: () => Promise<void>}} Through
 */

/**
 * All heads, small: pointing at one looks through it, a click keeps it.
 * @param {App} app
 * @param {number} number
 * @param {Through} through
 */
export function headStrip(app, number, through) {
  const trace = app.traces[number];
  const count = trace.attentions.reduce((sum, one) => sum + one.heads, 0);
  if (count > MAX_STRIP) return mutedText(`${plural(count, "head")}: see the tab Heads.`);
  /** @type {Mini[]} */
  const heads = [];
  const press = () => {
    const chosen = selectedAttention(trace, app.state);
    const any = app.state.attention !== undefined && !chosen.best;
    for (const { attention, head, element } of heads)
      element.setAttribute("aria-pressed", String(any && chosen.attention === attention && chosen.head === head));
  };
  /** @param {number} attention @param {number} head */
  const keep = (attention, head) => {
    const same = app.state.attention === String(attention) && app.state.head === String(head);
    const show = app.state.show === "both" ? "both" : "looked";
    app.updateState(
      same ? { attention: "", head: "", show } : { attention: String(attention), head: String(head), show }
    );
    press();
    void through.keep();
  };
  const rows = trace.attentions.flatMap((one, attention) => {
    const title = attentionTitle(trace, one);
    const minis = Array.from({ length: one.heads }, (_, head) =>
      miniature(`${title}, head ${head}`, one.name, attention, head, through, keep)
    );
    heads.push(...minis);
    return [
      make("span", { class: "layer-name", title: one.name }, title),
      make("span", { class: "layer-heads" }, ...minis.map(({ element }) => element))
    ];
  });
  press();
  heads.forEach(({ element }, i) => (element.tabIndex = i ? -1 : 0));
  /** @param {KeyboardEvent} event one stop of the Tab key: arrows walk the heads, across and down the layers */
  const walk = (event) => {
    const at = heads.findIndex(({ element }) => element === event.target);
    if (at < 0) return;
    const { attention, head } = heads[at];
    const layer = heads.filter((one) => one.attention === attention + (event.key === "ArrowUp" ? -1 : 1));
    const below = layer[Math.min(head, layer.length - 1)];
    /** @type {Record<string, Mini | undefined>} */
    const steps = { ArrowRight: heads[at + 1], ArrowLeft: heads[at - 1], ArrowDown: below, ArrowUp: below };
    const to = steps[event.key];
    if (!to) return;
    event.preventDefault();
    heads[at].element.tabIndex = -1;
    to.element.tabIndex = 0;
    to.element.focus();
  };
  void fillStrip(app, number, heads);
  const summary = make(
    "summary",
    {},
    `${plural(count, "head")} (${isTouched() ? "tap one" : "point at one"})`
  );
  // On a phone, style.css makes a sheet at the lower edge of it, under the words that it changes.
  const strip = make(
    "details",
    {
      class: "strip",
      open: !matchMedia("(max-width: 900px)").matches,
      keydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Escape" || getComputedStyle(strip).position !== "fixed") return;
        strip.open = false;
        summary.focus();
      }
    },
    summary,
    make("div", { class: "strip-grid", keydown: walk }, ...rows)
  );
  return strip;
}

/**
 * @param {string} title
 * @param {string} code
 * @param {number} attention
 * @param {number} head
 * @param {Through} through
 * @param {(attention: number, head: number) => void} keep
 * @returns {Mini}
 */
function miniature(title, code, attention, head, through, keep) {
  let wanted = false;
  const peek = () => {
    wanted = true;
    void through.peek(attention, head, () => wanted);
  };
  const leave = () => {
    wanted = false;
    through.leave();
  };
  const element = make("button", {
    type: "button",
    class: "mini",
    title: `${title} (${code})`,
    "aria-label": title,
    click: () => keep(attention, head),
    pointerenter: (/** @type {PointerEvent} */ event) => {
      if (event.pointerType !== "touch") peek();
    },
    pointerleave: leave,
    focus: () => {
      if (element.matches(":focus-visible")) peek();
    },
    blur: leave
  });
  return { attention, head, element };
}

/**
 * Paint the small maps, one after the other.
 * @param {App} app
 * @param {number} number
 * @param {Mini[]} heads
 */
async function fillStrip(app, number, heads) {
  const view = closing(app);
  for (const { attention, head, element } of heads) {
    const found = await thumbnail(headPlane(app, number, attention, head), EDGE, "linear").catch(() => null);
    if (view.closed) return;
    if (found) element.append(found.canvas);
    const wait = yieldToBrowser();
    if (wait) await wait;
  }
}

/**
 * The results of the search, with the number that they are ranked by, and where each parts from the best.
 * @param {string} title
 * @param {Search} search
 * @param {number | null} least the probability of the least likely word of the best one
 * @param {(node: number) => void} open
 */
export function resultList(title, search, least, open) {
  if (!search.best.length) return null;
  const { name, numbers, ranks } = rankingOf(search);
  const best = least === null ? [] : [`least likely word: ${formatPercent(least)}`];
  return make(
    "section",
    { class: "results" },
    make("h2", {}, `${title}: ${plural(search.best.length, "result")}, ${ranks ? "by" : "with"} ${name}`),
    make(
      "ol",
      {},
      ...search.best.map((end, i) => {
        const text = joinTokens(tokensOf(search, pathTo(search, end)));
        return make(
          "li",
          {},
          make(
            "button",
            { type: "button", click: () => open(end) },
            make("span", { dir: directionOf(text) }, `${i + 1}. `, isolatedText(text)),
            make("em", {}, ...(i ? partingWords(search, end) : best))
          ),
          make("strong", { class: "number" }, formatFixed(numbers[i], 2))
        );
      })
    )
  );
}

/**
 * @param {Search} search
 * @param {number} end
 */
function partingWords(search, end) {
  const parting = partingOf(search, end);
  if (!parting) return [];
  const { own, best, probability, against } = parting;
  return [
    "parts at ",
    make("span", { class: "nobr" }, isolatedText(own), ` ${formatPercent(probability)}`),
    " (best: ",
    make("span", { class: "nobr" }, isolatedText(best), ` ${formatPercent(against)})`)
  ];
}
