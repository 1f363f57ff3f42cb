// The view "Heads": all layers × heads as small maps, with entropy, and what each does: its role and cost over many
// sentences, where they were measured, or the pattern that it follows in this text.

import { Chart } from "./chart.js";
import { choice, textButton, mutedText, scaleChoice, sizeText, weightTable, thumbnail, traceNumber } from "./controls.js";
import { fill, isolatedText, make, pickNumber } from "./dom.js";
import { formatCount, formatFixed, formatPercent, formatTick, plural } from "./numbers.js";
import { attentionTitle, headPlane, isSelfAttention } from "./planes.js";
import { costLine, knownHead, ROLE_NAMES, roleLine, roleName, roleTable } from "./roles.js";
import { showScore } from "./scores.js";
import { isSeparator } from "./text.js";
import { hasView, VIEWS } from "./views.js";
import { yieldToBrowser, attentionSize, visibleColumns } from "./weights.js";

/** A head is named after a pattern that holds at least half of its weight ... */
const SHARE = 0.5;
/** ... and at least twice what uniform weights would put there. */
const LIFT = 2;
/** A head is uniform if its entropy is this share of the largest possible. */
const EVEN = 0.95;

const DIAGONAL = "diagonal";
const FEW = 6; // heads of a layer that leave room for another layer beside it
const SHARED = 0.2; // how far from 1 the sum of a row may be, on average, if its weights are shares of one whole
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
  let [entropy, possible, sumOfRows, seen] = [0, 0, 0, 0];
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
    if (total > 0) [sumOfRows, seen] = [sumOfRows + total, seen + 1];
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
  if (Math.abs(sumOfRows - seen) > SHARED * seen) entropy = NaN; // such as the maps of RWKV
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

const NAMING_RULE =
  `A head is labelled with the position that gets at least ${SHARE * 100} % of its weight and at least ${LIFT} times ` +
  `the share of uniform attention; “even” means an entropy of at least ${EVEN * 100} % of the maximum. ` +
  "Separators are tokens such as </s> and [SEP].";

/** @typedef {import("./heads.js").Measured | null} Found */
/** @typedef {{attention: number, head: number, element: HTMLElement, measured: Found, known: Known | null}} Card */
/** @typedef {import("./roles.js").Known} Known */

/** @type {[string, string][]} */
const SORTS = [
  ["place", "place in the model"],
  ["cost", "cost"],
  ["role", "role"]
];

VIEWS.push({
  name: "heads",
  title: "Heads",
  open(app, room) {
    const number = traceNumber(app);
    const trace = app.traces[number];
    const dialog = make("dialog", {
      class: "sheet",
      "aria-label": "One head",
      close: () => {
        app.updateState({ attention: "", head: "", large: "" });
        fill(dialog);
      }
    });
    const sort = trace.heads && SORTS.some(([name]) => name === app.state.sort) ? app.state.sort : "place";
    const names = make("p", { class: "quiet tally" });
    const filter = make("div", { class: "controls" });
    const cards = trace.attentions.flatMap((one, attention) =>
      Array.from({ length: one.heads }, (_, head) => {
        const open = () => openHead(app, number, attention, head, dialog);
        return makeCard(trace, attention, head, sort === "place", open);
      })
    );
    const update = () => countLabels(app, cards, names, filter, sort, trace);
    const queue = cardLoader(app, number, cards, update);
    fill(
      room,
      filter,
      names,
      make(
        "div",
        { class: sort === "place" && trace.attentions.every((one) => one.heads <= FEW) ? "layers few" : "layers" },
        ...sections(trace, cards, sort).map(([title, some]) =>
          make(
            "section",
            { class: "layer" },
            make("h2", {}, ...title),
            make("div", { class: "cards" }, ...some.map(({ element }) => element))
          )
        )
      ),
      mutedText(trace.heads ? COST_RULE : NAMING_RULE),
      mutedText(
        "Each map has its own colour scale, from 0 to the maximum below it (symmetric around 0 if some weights are " +
          "negative; such weights are not probabilities). “Looks at ~5 tokens”: the weights are as spread as 5 equal " +
          "ones, which is e to the power of the entropy, averaged over the rows."
      ),
      dialog
    );
    for (const card of cards) queue.add(card, trace.attentions[card.attention].data.kind === "weights");
    update();
    const attention = pickNumber(app.state.attention, trace.attentions.length, -1);
    if (app.state.large && attention >= 0)
      openHead(app, number, attention, pickNumber(app.state.head, trace.attentions[attention].heads, 0), dialog);
  }
});

const COST_RULE =
  "Cost: the rise of the loss in nats when the output of the head is set to zero; bold from twice its standard error " +
  "on. Two heads that do the same replace each other, and then neither costs much. Role: the places that get half of " +
  "the weight or more, and twice that of even attention; in brackets the strongest role of another head.";

/**
 * @param {Trace} trace
 * @param {number} attention
 * @param {number} head
 * @param {boolean} grouped whether the layer is named above it
 * @param {() => void} open
 * @returns {Card}
 */
function makeCard(trace, attention, head, grouped, open) {
  const known = knownHead(trace, attention, head);
  const layer = make(
    "span",
    { class: grouped ? "visually-hidden" : "" },
    attentionTitle(trace, trace.attentions[attention]) + ", "
  );
  const element = make(
    "button",
    { type: "button", class: "card", click: open },
    make("span", { class: "frame" }),
    make("span", { class: "title" }, layer, `head ${head}`),
    known && roleLine(known),
    known && costLine(known.head)
  );
  if (known?.head.role) element.dataset.named = roleName(known.head.role);
  return { attention, head, element, measured: null, known };
}

/**
 * The cards under headings: by layer, by cost or by role.
 * @param {Trace} trace
 * @param {Card[]} cards
 * @param {string} sort
 * @returns {[(Node | string)[], Card[]][]}
 */
function sections(trace, cards, sort) {
  if (sort === "place")
    return trace.attentions.map((one, attention) => [
      [make("span", { title: one.name }, attentionTitle(trace, one)), " ", make("small", {}, sizeText(trace, one))],
      cards.filter((card) => card.attention === attention)
    ]);
  const cost = (/** @type {Card} */ { known }) => known?.head.cost ?? -Number.MAX_VALUE;
  const costly = [...cards].sort((a, b) => cost(b) - cost(a));
  if (sort === "cost") return [[["The most costly first"], costly]];
  const role = (/** @type {Card} */ { known }) => known?.head.role ?? "";
  const roles = new Set([...Object.keys(ROLE_NAMES), ...cards.map(role).filter(Boolean)]);
  const score = (/** @type {Card} */ { known }) => known?.head.roles[known.head.role ?? ""] ?? 0;
  return [...roles, ""]
    .map((one) => /** @type {[string, Card[]]} */ ([one, costly.filter((card) => role(card) === one)]))
    .filter(([, some]) => some.length)
    .map(([one, some]) => [
      [one ? roleName(one) : "no role", " ", make("small", {}, plural(some.length, "head"))],
      one ? some.sort((a, b) => score(b) - score(a)) : some
    ]);
}

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
    const entropy = found?.entropy ?? NaN; // weights below 0 have none
    const nouns = trace.sides[trace.attentions[card.attention].keys].grid ? "patches" : "tokens";
    card.element.append(
      make(
        "span",
        {},
        entropy >= 0 ? `looks at ~${formatFixed(Math.exp(entropy), 1)} ${nouns}; ` : "",
        `strongest${size > 1 ? " block" : ""} ${formatTick(high)}`
      )
    );
    if (card.known) return; // a role over many sentences says more than a label from this one
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
 * How many heads have which label, and the choices to see only those, and in which order.
 * @param {App} app
 * @param {Card[]} cards
 * @param {HTMLElement} line
 * @param {HTMLElement} filter
 * @param {string} sort
 * @param {Trace} trace
 */
function countLabels(app, cards, line, filter, sort, trace) {
  const show = app.state.named ?? "";
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { element } of cards) {
    const { named } = element.dataset;
    if (named) counts.set(named, (counts.get(named) ?? 0) + 1);
  }
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const kind = trace.heads ? "Roles" : "Patterns";
  const image = Object.values(trace.sides).some(({ grid }) => grid);
  const noun = image ? "image" : "sentence";
  const tally = sorted.length ? `${kind}: ${sorted.map(([name, count]) => `${name} (${count})`).join(", ")}.` : "";
  const done = cards.filter((card) => card.measured).length;
  if (trace.heads) {
    const { sentences, data, loss } = trace.heads;
    const told = `Measured on ${plural(sentences, noun)} of `;
    fill(line, told, isolatedText(data), `; the loss of the whole model is ${formatFixed(loss, 3)} nats. ${tally}`);
  } else
    fill(
      line,
      `${formatCount(done)} of ${formatCount(cards.length)} heads measured, on this ${image ? "image" : "text"} only. `,
      tally,
      // Maps of other mixers, such as RWKV, have no score, and the command does not measure them.
      ...(trace.attentions.some(({ score }) => score)
        ? [make("br"), `For roles and costs over many ${noun}s: `, make("code", {}, "regard look MODEL --heads DATA")]
        : [])
    );
  for (const { element } of cards) element.hidden = Boolean(show) && element.dataset.named !== show;
  if (filter.contains(document.activeElement) && filter.childElementCount) return; // do not take it from under a hand
  const names = new Set([...sorted.map(([name]) => name), ...(show ? [show] : [])]);
  /** @type {[string, string][]} */
  const options = [...names].map((name) => [name, `${name} (${counts.get(name) ?? 0})`]);
  fill(
    filter,
    choice("Show", [["", "all heads"], ...options], show, (named) => app.navigate({ named })),
    trace.heads ? choice("Sort by", SORTS, sort, (value) => app.navigate({ sort: value })) : null
  );
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
  const score = make("section", { class: "weights score", "aria-live": "polite" });
  const chart = new Chart(app, plane, {
    shape,
    whole,
    tall: 460,
    onPick: (row, column) => {
      chart.pinned = { row, column };
      chart.redraw();
      void showScore(app, { trace: number, attention, head, row, column }, score);
    }
  });
  const facts = make("div", { class: "facts" });
  const [measured, known] = [app.traces[number].heads, knownHead(app.traces[number], attention, head)];
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
    score,
    known && measured ? roleTable(measured, known) : null,
    facts,
    weightTable(plane),
    make(
      "footer",
      {},
      textButton("Open in Read", to("read")),
      hasView("map") && textButton("Open in Map", to("map")),
      hasView("compare") && textButton("Compare", to("compare"))
    )
  );
  fill(score, mutedText("Click a cell, or press Enter on it, to see which dimensions make its score."));
  if (!dialog.open) dialog.showModal();
  chart.layout();
  measureHead(app, number, attention, head)
    .then((found) => {
      if (!found) return fill(facts, mutedText("This page has only an overview of this head."));
      const rest = found.rows < found.of ? ` (from ${found.rows} of ${formatCount(found.of)} rows, evenly spaced)` : "";
      fill(
        facts,
        Number.isNaN(found.entropy)
          ? make("p", {}, "The weights of a row are not shares of one whole, so they have no entropy.")
          : make(
              "p",
              {},
              "Entropy ",
              make("strong", { class: "number" }, formatFixed(found.entropy, 4)),
              " nats, averaged over the rows" + rest + "."
            ),
        make(
          "table",
          {},
          make("caption", {}, "In this text: share of the weight, and its share under uniform attention"),
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
