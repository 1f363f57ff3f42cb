// The view "Heads": all layers × heads as small maps, with entropy and the pattern that each head follows.

import { Chart } from "./chart.js";
import { choice, textButton, mutedText, scaleChoice, sizeText, weightTable, thumbnail, traceNumber } from "./controls.js";
import { fill, make, pickNumber } from "./dom.js";
import { formatCount, formatFixed, formatPercent, formatTick } from "./numbers.js";
import { attentionTitle, headPlane, isSelfAttention } from "./planes.js";
import { isSeparator } from "./text.js";
import { yieldToBrowser, attentionSize, visibleColumns } from "./weights.js";

/** A head is named after a pattern that holds at least half of its weight ... */
const SHARE = 0.5;
/** ... and at least twice what uniform weights would put there. */
const LIFT = 2;
/** A head is uniform if its entropy is this share of the largest possible. */
const EVEN = 0.95;

const DIAGONAL = "diagonal";
const MAX_ROWS = 64; // rows of a long map that are measured, evenly spaced

/** @typedef {{name: string, share: number, even: number}} Share of the weight, and of uniform weights */
/** @typedef {{entropy: number, shares: Share[], name: string, rows: number, of: number}} Measured */

/**
 * Patterns as columns of a row: [name, the columns].
 * @param {Trace} trace
 * @param {Attention} attention
 * @returns {[string, (row: number) => number[]][]}
 */
function patterns(trace, attention) {
  const { rows, columns } = attentionSize(trace, attention);
  const tokens = trace.sides[attention.keys].tokens;
  const separators = tokens.length <= 65536 ? [...tokens.keys()].filter((j) => isSeparator(tokens[j])) : [];
  /** @type {[string, (row: number) => number[]][]} */
  const places = [
    ["separators", () => separators],
    ["first token", () => [0]],
    ["last token", () => [columns - 1]]
  ];
  const shift = columns - rows;
  const near = [-2, -1, 0, 1, 2];
  if (isSelfAttention(trace, attention))
    return [
      ["itself", (i) => [i + shift]],
      ["previous token", (i) => [i + shift - 1]],
      ["next token", (i) => [i + shift + 1]],
      ...places,
      [`${DIAGONAL} ±2`, (i) => near.map((step) => i + shift + step)]
    ];
  const slope = rows > 1 ? (columns - 1) / (rows - 1) : 0;
  return [...places, [`${DIAGONAL} ±1`, (i) => [-1, 0, 1].map((step) => Math.round(i * slope) + step)]];
}

/**
 * Measure one head.
 * @param {App} app
 * @param {number} number of the trace
 * @param {number} attention
 * @param {number} head
 * @returns {Promise<Measured | null>} null where the page has only an overview
 */
export async function measureHead(app, number, attention, head) {
  const trace = app.traces[number];
  const one = trace.attentions[attention];
  if (one.data.kind === "overview") return null;
  const { rows, columns } = attentionSize(trace, one);
  const all = rows * columns <= 1 << 18;
  const count = all ? rows : Math.min(rows, one.data.kind === "served" ? MAX_ROWS / 4 : MAX_ROWS);
  const chosen = Array.from({ length: count }, (_, i) => Math.floor(((i + 0.5) * rows) / count));
  const whole = all
    ? (await app.source.map(number, attention, head, { top: 0, left: 0, rows, columns }, 1)).values
    : null;
  const sums = patterns(trace, one).map(([name, columnsOf]) => ({
    name,
    columnsOf,
    inside: 0,
    even: 0,
    total: 0,
    rows: 0
  }));
  let [entropy, possible] = [0, 0];
  for (const row of chosen) {
    const values = whole
      ? whole.subarray(row * columns, (row + 1) * columns)
      : (await app.source.map(number, attention, head, { top: row, left: 0, rows: 1, columns }, 1)).values;
    const [from, to] = visibleColumns(one.mask, rows, columns, row) ?? [0, columns];
    let total = 0;
    for (let j = 0; j < columns; j++) {
      total += Math.abs(values[j]);
      entropy -= values[j] === 0 ? 0 : (values[j] * Math.log(values[j])) / count;
    }
    possible += Math.log(Math.max(1, to - from)) / count;
    for (const sum of sums) {
      const inside = sum.columnsOf(row).filter((j) => j >= from && j < to);
      if (!inside.length) continue;
      sum.rows++;
      sum.total += total;
      sum.even += (total * inside.length) / (to - from);
      for (const j of inside) sum.inside += Math.abs(values[j]);
    }
  }
  // A position that few rows may attend to says little about the head: the end of a text under a causal mask.
  const shares = sums
    .filter((sum) => sum.total > 0 && sum.rows >= count / 2)
    .map(({ name, inside, even, total }) => ({ name, share: inside / total, even: even / total }))
    .sort((a, b) => b.share - a.share);
  const fit = shares.filter(({ share, even }) => share >= SHARE && share >= LIFT * even);
  // The diagonal is broad: it gives its name where no single place does.
  const best = fit.find(({ name }) => !name.startsWith(DIAGONAL)) ?? fit[0];
  const alike = possible > 0 && entropy >= EVEN * possible ? "even" : "";
  return { entropy, shares, name: best?.name ?? alike, rows: count, of: rows };
}

export const NAMING_RULE =
  `A head is labelled with the position that gets at least ${SHARE * 100}% of its weight and at least ${LIFT} times ` +
  `the share of uniform attention; “even” means an entropy of at least ${EVEN * 100}% of the maximum. ` +
  "Separators are tokens such as </s> and [SEP].";

/** @typedef {import("./heads.js").Measured | null} Found */
/** @typedef {{attention: number, head: number, element: HTMLElement, measured: Found}} Card */

/** @type {View} */
export const headsView = {
  name: "heads",
  title: "Heads",
  open(app, room) {
    const number = traceNumber(app);
    const trace = app.traces[number];
    /** @type {Card[]} */
    const cards = [];
    const dialog = make("dialog", {
      class: "sheet",
      "aria-label": "One head",
      close: () => {
        app.updateState({ attention: "", head: "", large: "" });
        fill(dialog);
      }
    });
    const names = make("p", { class: "quiet tally" });
    const show = app.state.named ?? "";
    const filter = make("div", { class: "controls" });
    const queue = cardLoader(app, number, cards, () => countPatterns(app, cards, names, filter, show));
    const groups = trace.attentions.map((one, attention) =>
      make(
        "section",
        { class: "layer" },
        make("h2", { title: one.name }, attentionTitle(trace, one), " ", make("small", {}, sizeText(trace, one))),
        make(
          "div",
          { class: "cards" },
          ...Array.from({ length: one.heads }, (_, head) => {
            const element = make(
              "button",
              { type: "button", class: "card", click: () => openHead(app, number, attention, head, dialog) },
              make("span", { class: "frame" }),
              make(
                "span",
                { class: "title" },
                make("span", { class: "visually-hidden" }, attentionTitle(trace, one) + ", "),
                `head ${head}`
              )
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
      mutedText(
        "Each map has its own colour scale, from 0 to the maximum below it (symmetric around 0 if some weights are " +
          "negative). “Looks at ~5 tokens”: the weights are as spread as 5 equal ones, which is e to the power of " +
          "the entropy, averaged over the rows."
      ),
      names,
      ...groups,
      mutedText(NAMING_RULE),
      dialog
    );
    countPatterns(app, cards, names, filter, show);
    const attention = pickNumber(app.state.attention, trace.attentions.length, -1);
    if (app.state.large && attention >= 0)
      openHead(app, number, attention, pickNumber(app.state.head, trace.attentions[attention].heads, 0), dialog);
  }
};

/**
 * Fill cards as they come into view, one after the other.
 * @param {App} app
 * @param {number} number
 * @param {Card[]} cards
 * @param {() => void} changed
 */
function cardLoader(app, number, cards, changed) {
  /** @type {Card[]} */
  const waiting = [];
  let [busy, closed] = [false, false];
  const run = async () => {
    busy = true;
    for (let card = waiting.shift(); card && !closed; card = waiting.shift()) {
      await fillCard(app, number, card);
      const wait = yieldToBrowser();
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
  app.onClose(() => {
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
 * @param {App} app
 * @param {number} number
 * @param {Card} card
 */
async function fillCard(app, number, card) {
  const trace = app.traces[number];
  const plane = headPlane(app, number, card.attention, card.head);
  const frame = /** @type {HTMLElement} */ (card.element.querySelector(".frame"));
  try {
    const { canvas, high, size } = await thumbnail(plane, 64, "linear");
    frame.replaceChildren(canvas);
    card.measured = await measureHead(app, number, card.attention, card.head);
    const found = card.measured;
    const nouns = trace.sides[trace.attentions[card.attention].keys].grid ? "patches" : "tokens";
    card.element.append(
      make(
        "span",
        {},
        found ? `looks at ~${formatFixed(Math.exp(found.entropy), 1)} ${nouns}; ` : "",
        `strongest${size > 1 ? " block" : ""} ${formatTick(high)}`
      )
    );
    const share = found?.shares.find(({ name }) => name === found.name)?.share;
    if (found?.name)
      card.element.append(
        make("span", { class: "named" }, found.name + (share === undefined ? "" : ` ${formatPercent(share)}`))
      );
    card.element.dataset.named = found?.name ?? "";
  } catch (error) {
    frame.replaceChildren(make("span", { class: "wrong" }, /** @type {Error} */ (error).message));
  }
}

/**
 * How many heads have which name, and the choice to see only those.
 * @param {App} app
 * @param {Card[]} cards
 * @param {HTMLElement} line
 * @param {HTMLElement} filter
 * @param {string} show
 */
function countPatterns(app, cards, line, filter, show) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { measured: found } of cards) if (found?.name) counts.set(found.name, (counts.get(found.name) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const done = cards.filter((card) => card.measured).length;
  line.textContent =
    `${formatCount(done)} of ${formatCount(cards.length)} heads measured. ` +
    sorted.map(([name, count]) => `${name}: ${count}`).join(" · ");
  if (filter.contains(document.activeElement) && filter.childElementCount) return; // do not take it from under a hand
  const names = new Set([...sorted.map(([name]) => name), ...(show ? [show] : [])]);
  fill(
    filter,
    choice(
      "Show",
      [
        ["", "all heads"],
        ...[...names].map((name) => /** @type {[string, string]} */ ([name, `those that attend to: ${name}`]))
      ],
      show,
      (named) => app.navigate({ named })
    )
  );
  for (const { element } of cards) element.classList.toggle("faded", Boolean(show) && element.dataset.named !== show);
}

/**
 * One head, large.
 * @param {App} app
 * @param {number} number
 * @param {number} attention
 * @param {number} head
 * @param {HTMLDialogElement} dialog
 */
function openHead(app, number, attention, head, dialog) {
  const plane = headPlane(app, number, attention, head);
  app.updateState({ attention: String(attention), head: String(head), large: "yes" });
  const { shape, whole } = scaleChoice(app, plane.rows * plane.columns > 1 << 16 ? "log" : "linear");
  const chart = new Chart(app, plane, { shape, whole, tall: 460 });
  const facts = make("div", { class: "facts" });
  /** @param {string} view */
  const to = (view) => () => app.navigate({ view, large: "", attention: String(attention), head: String(head) });
  fill(
    dialog,
    make(
      "header",
      {},
      make("h2", {}, plane.name, " ", make("small", {}, plane.code ?? "")),
      textButton("Close", () => dialog.close())
    ),
    chart.element,
    facts,
    weightTable(plane),
    make(
      "footer",
      {},
      textButton("Open in Read", to("read")),
      textButton("Open in Map", to("map")),
      textButton("Compare", to("compare"))
    )
  );
  if (!dialog.open) dialog.showModal();
  chart.layout();
  measureHead(app, number, attention, head)
    .then((found) => {
      if (!found) return fill(facts, mutedText("This page has only an overview of this head."));
      const rest = found.rows < found.of ? ` (from ${found.rows} of ${formatCount(found.of)} rows, evenly spaced)` : "";
      fill(
        facts,
        make(
          "p",
          {},
          "Entropy ",
          make("strong", { class: "number" }, formatFixed(found.entropy, 4)),
          " nats, averaged over the rows" + rest + "."
        ),
        make(
          "table",
          {},
          make("caption", {}, "Share of the weight, and its share under uniform attention"),
          make(
            "tbody",
            {},
            ...found.shares.map(({ name, share, even }) =>
              make(
                "tr",
                { class: name === found.name ? "strong" : "" },
                make("th", { scope: "row" }, name),
                make("td", {}, formatFixed(share, 4)),
                make("td", { class: "quiet" }, formatFixed(even, 4))
              )
            )
          )
        )
      );
    })
    .catch((error) => fill(facts, make("p", { class: "wrong" }, error.message)));
}
