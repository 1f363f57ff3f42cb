// The view Beam tree: what a search considered, what it kept and where it ended. Knows charts and the layout of trees.

import { Chart } from "./chart.js";
import { aligned, chosenAttention } from "./alignment.js";
import { attentionChoice, headChoice, pressable, quiet, remark, toggle, traceNumber } from "./pieces.js";
import { chance, counted, fixed, several, weight } from "./numbers.js";
import { drawn, fill, isolated, make } from "./dom.js";
import { isSmall } from "./planes.js";
import { joined, seen } from "./text.js";
import { pathTo, placeNodes, sharedPrefix, shownNodes } from "./tree_layout.js";
import { pickNumber } from "./state.js";

const [WIDE, HIGH] = [118, 40]; // pixels from step to step and from line to line
const MOST = 3000; // nodes on the page

/** @type {View} */
export const treeView = {
  name: "tree",
  title: "Beam tree",
  open(desk, room) {
    const trace = desk.traces[traceNumber(desk)];
    const search = trace.search;
    if (!search || !search.nodes.length) {
      fill(
        room,
        remark(
          'This trace holds no search. A trace of a translation by beam search does: regard look MODEL "text" --beam 5.'
        )
      );
      return;
    }
    const few = shownNodes(search, false, MOST);
    const wanted = pickNumber(desk.state.node, search.nodes.length, search.best[0] ?? 0);
    const dropped = desk.state.dropped === "yes" || !few.has(wanted);
    const shown = dropped ? shownNodes(search, true, MOST) : few;
    const layout = placeNodes(search, shown);
    const start = shown.has(wanted) ? wanted : layout.placed[0].number;
    const aside = make("aside", { class: "below", "aria-label": "The path" });
    const board = make("div", {
      class: "board",
      role: "tree",
      "aria-label": `The tree of a search with ${several(search.beams, "beam")}`
    });
    board.style.width = `${layout.depths * WIDE + 24}px`;
    board.style.height = `${layout.lines * HIGH + 16}px`;
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
            ["yes", "dropped ones too"]
          ],
          dropped ? "yes" : "no",
          (value) => desk.go({ dropped: value, node: "" })
        ),
        make(
          "ul",
          { class: "key" },
          ...["best", "kept", "ended", "dropped"].map((kind) =>
            make("li", {}, make("span", { class: `node ${kind}` }, KINDS[kind]))
          )
        )
      ),
      quiet(
        `${counted(search.nodes.length)} continuations considered with ${several(search.beams, "beam")}` +
          (hidden ? `, ${counted(hidden)} of them not shown` : "") +
          (search.left_out ? `, and ${counted(search.left_out)} more that there was no room for` : "") +
          ". Under a token: its probability after what is before it."
      ),
      make("div", { class: "board-room" }, board),
      aside
    );
    drawTree(search, layout, board, start, (number) => {
      desk.note({ node: String(number) });
      describe(desk, trace, search, number, aside);
    });
    describe(desk, trace, search, start, aside);
  }
};

/** @type {Record<string, string>} */
const KINDS = { best: "the best", kept: "kept", ended: "finished ■", dropped: "dropped" };

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
  const lines = drawn("svg", {
    width: layout.depths * WIDE + 24,
    height: layout.lines * HIGH + 16,
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
    const [x, y] = [depth * WIDE + 8, line * HIGH + 24];
    if (from) {
      const [px, py] = [from.depth * WIDE + 8 + WIDE - 22, from.line * HIGH + 24];
      const link = drawn("path", {
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
      isolated(seen(node.token)),
      make(
        "small",
        {},
        chance(Math.exp(node.log_probability)) + (node.ended ? " ■" : ""),
        make("span", { class: "unseen" }, ` ${state}`)
      )
    );
    element.style.left = `${x}px`;
    element.style.top = `${y - 17}px`;
    element.style.width = `${WIDE - 22}px`;
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
 * A path: its text, its numbers, and where it looked, as far as the trace knows.
 * @param {Desk} desk
 * @param {Trace} trace
 * @param {Search} search
 * @param {number} number
 * @param {HTMLElement} room
 */
function describe(desk, trace, search, number, room) {
  const path = pathTo(search, number);
  const node = search.nodes[number];
  const rank = search.best.indexOf(number);
  const tokens = path.map((one) => search.nodes[one].token);
  const state = node.ended
    ? "It is finished."
    : node.kept
      ? "The search went on from here."
      : "The search dropped it here.";
  const picture = make("div");
  const text = joined(tokens) || seen(node.token);
  desk.say(`${text}: ${fixed(node.total, 3)}. ${state}`);
  fill(
    room,
    make("h2", { dir: "auto" }, isolated(text)),
    make(
      "p",
      {},
      `Sum of log-probabilities `,
      make("strong", { class: "number" }, fixed(node.total, 4)),
      `, ${several(path.length, "token")}. ${state}`,
      rank >= 0 ? ` Result ${rank + 1} of ${search.best.length}.` : ""
    ),
    make(
      "div",
      { class: "table-room", tabindex: "0", role: "region", "aria-label": "Numbers of the path" },
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
            ...tokens.map((token) => make("td", {}, isolated(seen(token))))
          ),
          make(
            "tr",
            {},
            make("th", { scope: "row" }, "probability"),
            ...path.map((one) => make("td", {}, weight(Math.exp(search.nodes[one].log_probability))))
          ),
          make(
            "tr",
            {},
            make("th", { scope: "row" }, "sum of logs"),
            ...path.map((one) => make("td", {}, fixed(search.nodes[one].total, 3)))
          )
        )
      )
    ),
    picture
  );
  const side = trace.written && trace.sides[trace.written.side];
  const shared = side ? sharedPrefix(search, path, side.tokens) : 0;
  void showAttention(desk, trace, shared, path.length, rank, picture);
}

/**
 * The rows of the attention that belong to a path: those of the tokens that it shares with what was written.
 * @param {Desk} desk
 * @param {Trace} trace
 * @param {number} shared
 * @param {number} length
 * @param {number} rank
 * @param {HTMLElement} room
 */
async function showAttention(desk, trace, shared, length, rank, room) {
  const other =
    desk.page.asks && rank > 0
      ? pressable("Show this result in What if", () => desk.go({ view: "what-if", choice: String(rank) }))
      : null;
  const chosen = chosenAttention(trace, desk.state);
  const one = trace.attentions[chosen.attention];
  if (!shared || one.queries !== trace.written?.side || !isSmall(trace, one)) {
    fill(room, remark("The trace has no attention for this path: it looks at the text that was written. "), other);
    return;
  }
  const number = traceNumber(desk);
  const { plane, rows } = await aligned(desk, number, chosen, "tokens");
  const count = rows.filter((unit) => unit.last < shared).length;
  if (!count) return;
  const chart = new Chart(desk, { ...plane, rows: count }, {});
  fill(
    room,
    make("h3", {}, `Where ${shared === length ? "it" : "its beginning"} looked`),
    shared < length
      ? quiet(
          `The first ${shared} of its ${length} tokens are those that were written; the trace has the weights of these.`
        )
      : null,
    make(
      "div",
      { class: "controls" },
      attentionChoice(desk, number, String(chosen.attention), (attention) => desk.go({ attention, head: "" })),
      headChoice(
        one,
        chosen.head < 0 ? "mean" : String(chosen.head),
        (head) => desk.go({ attention: String(chosen.attention), head }),
        [["mean", "mean of all"]]
      )
    ),
    chart.element,
    other
  );
  chart.layout();
}
