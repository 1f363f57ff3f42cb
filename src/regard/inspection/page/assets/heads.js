// The view Heads: all layers × heads as small maps, with entropy and what each looks at. Knows charts and measures.

import { Chart } from "./chart.js";
import { HOW_NAMED, measured } from "./measure.js";
import { choice, pressable, quiet, scaleChoice, sizeText, tableOf, thumbnail, traceNumber } from "./pieces.js";
import { counted, fixed, percent, tick } from "./numbers.js";
import { breathe } from "./projected.js";
import { fill, make } from "./dom.js";
import { headPlane } from "./planes.js";
import { pickNumber } from "./state.js";

/** @typedef {import("./measure.js").Measured | null} Found */
/** @typedef {{attention: number, head: number, element: HTMLElement, measured: Found}} Card */

/** @type {View} */
export const headsView = {
  name: "heads",
  title: "Heads",
  open(desk, room) {
    const number = traceNumber(desk);
    const trace = desk.traces[number];
    /** @type {Card[]} */
    const cards = [];
    const dialog = make("dialog", {
      class: "sheet",
      "aria-label": "One head",
      close: () => {
        desk.note({ attention: "", head: "", large: "" });
        fill(dialog);
      }
    });
    const names = make("p", { class: "quiet tally" });
    const show = desk.state.named ?? "";
    const filter = make("div", { class: "controls" });
    const queue = loader(desk, number, cards, () => tally(desk, cards, names, filter, show));
    const groups = trace.attentions.map((one, attention) =>
      make(
        "section",
        { class: "layer" },
        make("h2", {}, one.name, " ", make("small", {}, sizeText(trace, one))),
        make(
          "div",
          { class: "cards" },
          ...Array.from({ length: one.heads }, (_, head) => {
            const element = make(
              "button",
              { type: "button", class: "card", click: () => enlarge(desk, number, attention, head, dialog) },
              make("span", { class: "frame" }),
              make("span", { class: "title" }, make("span", { class: "unseen" }, one.name + ", "), `head ${head}`)
            );
            /** @type {Card} */
            const card = { attention, head, element, measured: null };
            cards.push(card);
            queue.add(card, one.data.kind === "weights");
            return element;
          })
        )
      )
    );
    fill(
      room,
      filter,
      quiet(
        "Each small map has a scale of its own, from 0 to the “max” under it (from minus that, where weights are " +
          "negative). H is the entropy in nats, mean over the rows."
      ),
      names,
      ...groups,
      quiet(HOW_NAMED),
      dialog
    );
    tally(desk, cards, names, filter, show);
    const attention = pickNumber(desk.state.attention, trace.attentions.length, -1);
    if (desk.state.large && attention >= 0)
      enlarge(desk, number, attention, pickNumber(desk.state.head, trace.attentions[attention].heads, 0), dialog);
  }
};

/**
 * Fill cards as they come into view, one after the other.
 * @param {Desk} desk
 * @param {number} number
 * @param {Card[]} cards
 * @param {() => void} changed
 */
function loader(desk, number, cards, changed) {
  /** @type {Card[]} */
  const waiting = [];
  let [busy, closed] = [false, false];
  const run = async () => {
    busy = true;
    for (let card = waiting.shift(); card && !closed; card = waiting.shift()) {
      await complete(desk, number, card);
      const wait = breathe();
      if (wait) await wait;
      if (wait || !waiting.length) changed();
    }
    busy = false;
  };
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const card = cards.find(({ element }) => element === entry.target);
        if (!entry.isIntersecting || !card) continue;
        watcher.unobserve(entry.target);
        waiting.push(card);
      }
      if (!busy) void run();
    },
    { rootMargin: "200px" }
  );
  desk.leaving(() => {
    closed = true;
    watcher.disconnect();
  });
  return {
    /** @param {Card} card @param {boolean} cheap not worth waiting for it to be seen */
    add(card, cheap) {
      if (!cheap) watcher.observe(card.element);
      else if (waiting.push(card) && !busy) void run();
    }
  };
}

/**
 * @param {Desk} desk
 * @param {number} number
 * @param {Card} card
 */
async function complete(desk, number, card) {
  const plane = headPlane(desk, number, card.attention, card.head);
  const frame = /** @type {HTMLElement} */ (card.element.querySelector(".frame"));
  try {
    const { canvas, high, size } = await thumbnail(plane, 64, "linear");
    frame.replaceChildren(canvas);
    card.measured = await measured(desk, number, card.attention, card.head);
    const found = card.measured;
    card.element.append(
      make("span", {}, found ? `H ${fixed(found.entropy, 2)}, ` : "", `max${size > 1 ? " mean" : ""} ${tick(high)}`)
    );
    const share = found?.shares.find(({ name }) => name === found.name)?.share;
    if (found?.name)
      card.element.append(
        make("span", { class: "named" }, found.name + (share === undefined ? "" : ` ${percent(share)}`))
      );
    card.element.dataset.named = found?.name ?? "";
  } catch (error) {
    frame.replaceChildren(make("span", { class: "wrong" }, /** @type {Error} */ (error).message));
  }
}

/**
 * How many heads have which name, and the choice to see only those.
 * @param {Desk} desk
 * @param {Card[]} cards
 * @param {HTMLElement} line
 * @param {HTMLElement} filter
 * @param {string} show
 */
function tally(desk, cards, line, filter, show) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { measured: found } of cards) if (found?.name) counts.set(found.name, (counts.get(found.name) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const done = cards.filter((card) => card.measured).length;
  line.textContent =
    `${counted(done)} of ${counted(cards.length)} heads measured. ` +
    sorted.map(([name, count]) => `${name}: ${count}`).join(" · ");
  if (filter.contains(document.activeElement) && filter.childElementCount) return; // do not take it from under a hand
  const names = new Set([...sorted.map(([name]) => name), ...(show ? [show] : [])]);
  fill(
    filter,
    choice(
      "Show",
      [
        ["", "all heads"],
        ...[...names].map((name) => /** @type {[string, string]} */ ([name, `those that look at: ${name}`]))
      ],
      show,
      (named) => desk.go({ named })
    )
  );
  for (const { element } of cards) element.classList.toggle("faded", Boolean(show) && element.dataset.named !== show);
}

/**
 * One head, large.
 * @param {Desk} desk
 * @param {number} number
 * @param {number} attention
 * @param {number} head
 * @param {HTMLDialogElement} dialog
 */
function enlarge(desk, number, attention, head, dialog) {
  const plane = headPlane(desk, number, attention, head);
  desk.note({ attention: String(attention), head: String(head), large: "yes" });
  const { shape, whole } = scaleChoice(desk, plane.rows * plane.columns > 1 << 16 ? "log" : "linear");
  const chart = new Chart(desk, plane, { shape, whole, tall: 460 });
  const facts = make("div", { class: "facts" });
  /** @param {string} view */
  const to = (view) => () => desk.go({ view, large: "", attention: String(attention), head: String(head) });
  fill(
    dialog,
    make(
      "header",
      {},
      make("h2", {}, plane.name),
      pressable("Close", () => dialog.close())
    ),
    chart.element,
    facts,
    tableOf(plane),
    make(
      "footer",
      {},
      pressable("Open in Alignment", to("alignment")),
      pressable("Open in Long", to("long")),
      pressable("Compare", to("pair"))
    )
  );
  if (!dialog.open) dialog.showModal();
  chart.layout();
  measured(desk, number, attention, head)
    .then((found) => {
      if (!found) return fill(facts, quiet("This page holds only an overview of this head."));
      const rest = found.rows < found.of ? ` (from ${found.rows} of ${counted(found.of)} rows, evenly spaced)` : "";
      fill(
        facts,
        make(
          "p",
          {},
          "Entropy ",
          make("strong", { class: "number" }, fixed(found.entropy, 4)),
          " nats, mean over the rows" + rest + "."
        ),
        make(
          "table",
          {},
          make("caption", {}, "Share of its weight, and the share if it looked everywhere alike"),
          make(
            "tbody",
            {},
            ...found.shares.map(({ name, share, even }) =>
              make(
                "tr",
                { class: name === found.name ? "strong" : "" },
                make("th", { scope: "row" }, name),
                make("td", {}, fixed(share, 4)),
                make("td", { class: "quiet" }, fixed(even, 4))
              )
            )
          )
        )
      );
    })
    .catch((error) => fill(facts, make("p", { class: "wrong" }, error.message)));
}
