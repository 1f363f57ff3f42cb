// The view "Beam tree": what a search considered, what it kept and where it ended; and the layout of its nodes.

import { alignmentMatrix, selectedAttention } from "./alignment.js";
import { Chart } from "./chart.js";
import { attentionChoice, headChoice, textButton, mutedText, notice, toggle, traceNumber } from "./controls.js";
import { makeSvg, fill, isolatedText, make, pickNumber } from "./dom.js";
import { formatProbability, formatCount, formatFixed, plural, formatWeight } from "./numbers.js";
import { isSmall } from "./planes.js";
import { joinTokens, visibleText } from "./text.js";

/** @typedef {{number: number, depth: number, line: number}} Placed */

/**
 * The nodes from the beginning to this one.
 * @param {Search} search
 * @param {number} number
 */
export function pathTo(search, number) {
  const path = [];
  for (let at = number; at >= 0; at = search.nodes[at].parent) path.unshift(at);
  return path;
}

/**
 * The nodes that are shown: all, or only what was kept, what ended, and what led there; at most `most` of them.
 * @param {Search} search
 * @param {boolean} dropped
 * @param {number} most
 */
export function shownNodes(search, dropped, most) {
  const shown = new Set();
  for (const end of search.best) for (const number of pathTo(search, end)) shown.add(number);
  for (const [number, node] of search.nodes.entries()) {
    if (shown.size >= most) break;
    if (!dropped && !node.kept && !node.ended) continue;
    // A parent stands before its children, so that what was left out for want of room leaves its children out too.
    if (node.parent < 0 || shown.has(node.parent)) shown.add(number);
  }
  return shown;
}

/**
 * Place the shown nodes. A node and its best child stand on one line; every other child begins a line of its own below,
 * the first that is free as far as it goes.
 * @param {Search} search
 * @param {Set<number>} shown
 * @returns {{placed: Placed[], lines: number, depths: number, children: Map<number, number[]>}}
 */
export function placeNodes(search, shown) {
  const winners = new Set(search.best.length ? pathTo(search, search.best[0]) : []);
  /** @type {Map<number, number[]>} */
  const children = new Map();
  for (const number of shown) {
    const { parent } = search.nodes[number];
    children.set(parent, [...(children.get(parent) ?? []), number]);
  }
  for (const list of children.values())
    list.sort(
      (a, b) =>
        Number(winners.has(b)) - Number(winners.has(a)) || search.nodes[b].total - search.nodes[a].total || a - b
    );
  /** @type {Placed[]} */
  const placed = [];
  /** @type {Set<number>[]} the steps that are taken, for every line */
  const taken = [];
  let depths = 0;
  const waiting = (children.get(-1) ?? []).map((number) => ({ number, depth: 0, below: 0 }));
  for (let next = waiting.shift(); next; next = waiting.shift()) {
    const run = [];
    for (let at = /** @type {number | undefined} */ (next.number); at !== undefined; at = children.get(at)?.[0])
      run.push(at);
    // One step before it stays free, so that it does not look like a continuation of another branch.
    const steps = Array.from({ length: run.length + 1 }, (_, i) => next.depth - 1 + i);
    let line = next.below;
    while (taken[line] && steps.some((step) => taken[line].has(step))) line++;
    while (taken.length <= line) taken.push(new Set());
    run.forEach((number, i) => {
      const depth = next.depth + i;
      taken[line].add(depth);
      placed.push({ number, depth, line });
      depths = Math.max(depths, depth + 1);
      for (const other of children.get(number)?.slice(1) ?? [])
        waiting.push({ number: other, depth: depth + 1, below: line + 1 });
    });
  }
  return { placed, lines: taken.length, depths, children };
}

/**
 * How many tokens of a path are the tokens that were written, from the first on.
 * @param {Search} search
 * @param {number[]} path
 * @param {string[]} tokens
 */
export function sharedPrefix(search, path, tokens) {
  let count = 0;
  while (count < path.length && count < tokens.length && search.nodes[path[count]].token === tokens[count]) count++;
  return count;
}

const [STEP_WIDTH, LINE_HEIGHT] = [118, 40]; // pixels from step to step and from line to line
const MAX_NODES = 3000; // nodes on the page

/** @type {View} */
export const treeView = {
  name: "tree",
  title: "Beam tree",
  open(app, room) {
    const trace = app.traces[traceNumber(app)];
    const search = trace.search;
    if (!search || !search.nodes.length) {
      fill(
        room,
        notice(
          'This trace has no beam search. To record one: regard look MODEL "text" --beam 5'
        )
      );
      return;
    }
    const few = shownNodes(search, false, MAX_NODES);
    const wanted = pickNumber(app.state.node, search.nodes.length, search.best[0] ?? 0);
    const dropped = app.state.dropped === "yes" || !few.has(wanted);
    const shown = dropped ? shownNodes(search, true, MAX_NODES) : few;
    const layout = placeNodes(search, shown);
    const start = shown.has(wanted) ? wanted : layout.placed[0].number;
    const aside = make("aside", { class: "below", "aria-label": "Selected path" });
    const board = make("div", {
      class: "board",
      role: "tree",
      "aria-label": `Tree of a beam search with ${plural(search.beams, "beam")}`
    });
    board.style.width = `${layout.depths * STEP_WIDTH + 24}px`;
    board.style.height = `${layout.lines * LINE_HEIGHT + 16}px`;
    const hidden = search.nodes.length - shown.size;
    fill(
      room,
      make(
        "div",
        { class: "controls" },
        toggle(
          "Show",
          [
            ["no", "kept and finished"],
            ["yes", "all, including pruned"]
          ],
          dropped ? "yes" : "no",
          (value) => app.navigate({ dropped: value, node: "" })
        ),
        make(
          "ul",
          { class: "key" },
          ...["best", "kept", "ended", "dropped"].map((kind) =>
            make("li", {}, make("span", { class: `node ${kind}` }, KINDS[kind]))
          )
        )
      ),
      mutedText(
        `${plural(search.nodes.length, "continuation")} considered with ${plural(search.beams, "beam")}` +
          (hidden ? `, ${formatCount(hidden)} of them not shown` : "") +
          (search.left_out ? `, and ${formatCount(search.left_out)} more that are not in the trace` : "") +
          ". Below a token: its probability given the tokens before it."
      ),
      make("div", { class: "board-room" }, board),
      aside
    );
    drawTree(search, layout, board, start, (number) => {
      app.updateState({ node: String(number) });
      describePath(app, trace, search, number, aside);
    });
    describePath(app, trace, search, start, aside);
  }
};

/** @type {Record<string, string>} */
const KINDS = { best: "best", kept: "kept", ended: "finished ■", dropped: "pruned" };

/**
 * @param {Search} search
 * @param {ReturnType<typeof placeNodes>} layout
 * @param {HTMLElement} board
 * @param {number} start the node that is chosen first
 * @param {(number: number) => void} chosen
 */
function drawTree(search, layout, board, start, chosen) {
  const best = new Set(search.best.length ? pathTo(search, search.best[0]) : []);
  const places = new Map(layout.placed.map((one) => [one.number, one]));
  /** @type {Map<number, HTMLElement>} */
  const elements = new Map();
  /** @type {Map<number, Element>} */
  const links = new Map();
  const lines = makeSvg("svg", {
    width: layout.depths * STEP_WIDTH + 24,
    height: layout.lines * LINE_HEIGHT + 16,
    "aria-hidden": "true"
  });
  board.append(lines);
  /** @param {number} number */
  const select = (number) => {
    const path = new Set(pathTo(search, number));
    for (const [one, link] of links) link.classList.toggle("on-path", path.has(one));
    for (const [one, element] of elements) {
      element.tabIndex = one === number ? 0 : -1;
      element.setAttribute("aria-selected", String(one === number));
      element.classList.toggle("on-path", path.has(one));
    }
  };
  for (const { number, depth, line } of layout.placed) {
    const node = search.nodes[number];
    const from = places.get(node.parent);
    const [x, y] = [depth * STEP_WIDTH + 8, line * LINE_HEIGHT + 24];
    if (from) {
      const [px, py] = [from.depth * STEP_WIDTH + 8 + STEP_WIDTH - 22, from.line * LINE_HEIGHT + 24];
      const link = makeSvg("path", {
        d: `M${px} ${py}C${px + 14} ${py} ${x - 14} ${y} ${x} ${y}`,
        class: best.has(number) ? "best" : node.kept || node.ended ? "kept" : "dropped"
      });
      links.set(number, link);
      lines.append(link);
    }
    const state = node.ended ? "finished" : node.kept ? "kept" : "dropped";
    const element = make(
      "div",
      {
        role: "treeitem",
        "aria-level": depth + 1,
        tabindex: "-1",
        "aria-selected": "false",
        class: `node ${best.has(number) ? "best" : ""} ${node.ended ? "ended" : node.kept ? "kept" : "dropped"}`,
        click: () => {
          select(number);
          chosen(number);
        }
      },
      isolatedText(visibleText(node.token)),
      make(
        "small",
        {},
        formatProbability(Math.exp(node.log_probability)) + (node.ended ? " ■" : ""),
        make("span", { class: "visually-hidden" }, ` ${state}`)
      )
    );
    element.style.left = `${x}px`;
    element.style.top = `${y - 17}px`;
    element.style.width = `${STEP_WIDTH - 22}px`;
    elements.set(number, element);
    board.append(element);
  }
  board.addEventListener("keydown", (event) => {
    const at = [...elements].find(([, element]) => element === document.activeElement)?.[0];
    if (at === undefined) return;
    const siblings = layout.children.get(search.nodes[at].parent) ?? [];
    const column = layout.placed.filter(({ depth }) => depth === places.get(at)?.depth).sort((a, b) => a.line - b.line);
    const beside = column.findIndex(({ number }) => number === at);
    /** @type {Record<string, number | undefined>} */
    const next = {
      ArrowLeft: search.nodes[at].parent,
      ArrowRight: layout.children.get(at)?.[0],
      ArrowUp: column[beside - 1]?.number,
      ArrowDown: column[beside + 1]?.number,
      Home: siblings[0],
      End: siblings[siblings.length - 1]
    };
    if (event.key === "Enter" || event.key === " ") chosen(at);
    else if (event.key in next) {
      const to = next[event.key];
      if (to === undefined || to < 0) return;
      select(to);
      elements.get(to)?.focus();
    } else return;
    event.preventDefault();
  });
  select(start);
}

/**
 * A path: its text, its numbers, and its attention, as far as the trace has it.
 * @param {App} app
 * @param {Trace} trace
 * @param {Search} search
 * @param {number} number
 * @param {HTMLElement} room
 */
function describePath(app, trace, search, number, room) {
  const path = pathTo(search, number);
  const node = search.nodes[number];
  const rank = search.best.indexOf(number);
  const tokens = path.map((one) => search.nodes[one].token);
  const state = node.ended
    ? "The hypothesis is finished."
    : node.kept
      ? "The search continued from here."
      : "The search pruned it here.";
  const picture = make("div");
  const text = joinTokens(tokens) || visibleText(node.token);
  app.announce(`${text}: ${formatFixed(node.total, 3)}. ${state}`);
  fill(
    room,
    make("h2", { dir: "auto" }, isolatedText(text)),
    make(
      "p",
      {},
      `Sum of log-probabilities `,
      make("strong", { class: "number" }, formatFixed(node.total, 4)),
      `, ${plural(path.length, "token")}. ${state}`,
      rank >= 0 ? ` Result ${rank + 1} of ${search.best.length}.` : ""
    ),
    make(
      "div",
      { class: "table-room", tabindex: "0", role: "region", "aria-label": "Probabilities along the path" },
      make(
        "table",
        {},
        make(
          "tbody",
          {},
          make(
            "tr",
            {},
            make("th", { scope: "row" }, "token"),
            ...tokens.map((token) => make("td", {}, isolatedText(visibleText(token))))
          ),
          make(
            "tr",
            {},
            make("th", { scope: "row" }, "probability"),
            ...path.map((one) => make("td", {}, formatWeight(Math.exp(search.nodes[one].log_probability))))
          ),
          make(
            "tr",
            {},
            make("th", { scope: "row" }, "sum of log-probabilities"),
            ...path.map((one) => make("td", {}, formatFixed(search.nodes[one].total, 3)))
          )
        )
      )
    ),
    picture
  );
  const side = trace.written && trace.sides[trace.written.side];
  const shared = side ? sharedPrefix(search, path, side.tokens) : 0;
  void showAttention(app, trace, shared, path.length, rank, picture);
}

/**
 * The rows of the attention that belong to a path: those of the tokens that it shares with what was written.
 * @param {App} app
 * @param {Trace} trace
 * @param {number} shared
 * @param {number} length
 * @param {number} rank
 * @param {HTMLElement} room
 */
async function showAttention(app, trace, shared, length, rank, room) {
  const other =
    app.page.asks && rank > 0
      ? textButton("Show this result in What if", () => app.navigate({ view: "what-if", choice: String(rank) }))
      : null;
  const chosen = selectedAttention(trace, app.state);
  const one = trace.attentions[chosen.attention];
  if (!shared || one.queries !== trace.written?.side || !isSmall(trace, one)) {
    fill(room, notice("The trace has the attention of the output only, not of this path. "), other);
    return;
  }
  const number = traceNumber(app);
  const { plane, rows } = await alignmentMatrix(app, number, chosen, "tokens");
  const count = rows.filter((unit) => unit.last < shared).length;
  if (!count) return;
  const chart = new Chart(app, { ...plane, rows: count }, {});
  fill(
    room,
    make("h3", {}, `Attention of ${shared === length ? "this path" : "its first tokens"}`),
    shared < length
      ? mutedText(
          `The first ${shared} of its ${length} tokens are those of the output; the trace has weights only for them.`
        )
      : null,
    make(
      "div",
      { class: "controls" },
      attentionChoice(app, number, String(chosen.attention), (attention) => app.navigate({ attention, head: "" })),
      headChoice(
        one,
        chosen.head < 0 ? "mean" : String(chosen.head),
        (head) => app.navigate({ attention: String(chosen.attention), head }),
        [["mean", "mean of all heads"]]
      )
    ),
    chart.element,
    other
  );
  chart.layout();
}
