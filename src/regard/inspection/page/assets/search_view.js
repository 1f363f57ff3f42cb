// The view "Search": the tree of a beam search. A chain of tokens without a branch is one box; at the leaves stand the
// rank, the number that results are ranked by, and the text; below the tree, where the results part.

import { resultList } from "./beside.js";
import { mutedText, textButton, toggle, traceNumber } from "./controls.js";
import { fill, isolatedText, make, makeSvg, pickNumber } from "./dom.js";
import { formatCount, formatFixed, formatPercent, formatWeight, plural } from "./numbers.js";
import { PRINTED } from "./ribbons.js";
import { chainsOf, pathTo, placeChains, rankingOf, shownNodes, tokensOf } from "./search.js";
import { directionOf, joinTokens, visibleText } from "./text.js";
import { VIEWS } from "./views.js";

const [LINE_HEIGHT, GAP] = [46, 26]; // pixels from line to line, and between boxes
const [MIN_BOX, MAX_BOX, LEAF] = [66, 300, 340]; // pixels of a box, and of the text at a leaf
const MAX_NODES = 3000; // nodes on the page

VIEWS.push({
  name: "search",
  title: "Search",
  open(app, room) {
    const trace = app.traces[traceNumber(app)];
    const search = trace.search;
    if (!search) return; // of two traces one may have none, and then there is no tab
    const few = shownNodes(search, false, MAX_NODES);
    const wanted = pickNumber(app.state.node, search.nodes.length, search.best[0] ?? 0);
    const dropped = app.state.dropped === "yes" || !few.has(wanted);
    const shown = dropped ? shownNodes(search, true, MAX_NODES) : few;
    const hidden = search.nodes.length - shown.size;
    const aside = make("section", { class: "below", "aria-label": "Selected path" });
    const tree = new Tree(search, shown, (number) => {
      app.updateState({ node: String(number) });
      describePath(app, search, number, aside);
    });
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
          ". In a box: tokens without a branch between them, and the probability of the first."
      ),
      make("div", { class: "board-room" }, tree.board),
      resultList("Where they part", search, null, (number) => tree.select(number, true)),
      aside
    );
    const start = shown.has(wanted) ? wanted : tree.first;
    tree.select(start, false);
    tree.reveal(start);
    describePath(app, search, start, aside);
  }
});

/** @type {Record<string, string>} */
const KINDS = { best: "best", kept: "kept", ended: "finished ■", dropped: "pruned" };

/** The tree as boxes and lines, with one selected node. */
class Tree {
  /**
   * @param {Search} search
   * @param {Set<number>} shown
   * @param {(number: number) => void} chosen
   */
  constructor(search, shown, chosen) {
    this.search = search;
    this.chosen = chosen;
    const { chains, roots } = chainsOf(search, shown);
    this.chains = chains;
    this.roots = roots;
    this.ranking = rankingOf(search);
    /** @type {Map<number, number>} the chain of every node */
    this.chainOf = new Map();
    chains.forEach(({ nodes }, i) => nodes.forEach((node) => this.chainOf.set(node, i)));
    this.texts = chains.map(({ nodes }) => nodes.map((node) => visibleText(search.nodes[node].token)).join(" "));
    this.widths = this.texts.map((text) => Math.max(MIN_BOX, Math.min(MAX_BOX, 30 + 7.4 * [...text].length)));
    const layout = placeChains(chains, roots, (i) => this.widths[i] + (this.rankOf(i) >= 0 ? LEAF : 0), GAP);
    this.places = new Map(layout.placed.map((one) => [one.chain, one]));
    this.first = chains[roots[0]].nodes[0];
    const best = new Set(search.best.length ? pathTo(search, search.best[0]) : []);
    const [width, height] = [layout.width + 24, layout.lines * LINE_HEIGHT + 16];
    const label = `Tree of a beam search with ${plural(search.beams, "beam")}`;
    this.lines = makeSvg("svg", { width, height, "aria-hidden": "true" });
    this.board = make("div", { class: "board", role: "tree", "aria-label": label }, this.lines);
    this.board.style.width = `${width}px`;
    this.board.style.height = `${height}px`;
    this.board.style.setProperty("--printed", String(Math.min(1, PRINTED / width)));
    /** @type {HTMLElement[]} */
    this.boxes = [];
    /** @type {(Element | null)[]} */
    this.links = [];
    chains.forEach((_, i) => this.draw(i, best));
    this.board.addEventListener("keydown", (event) => this.key(event));
  }

  /** The rank of the result that ends with a chain; −1 if none does. @param {number} chain */
  rankOf(chain) {
    const { nodes } = this.chains[chain];
    return this.search.best.indexOf(nodes[nodes.length - 1]);
  }

  /** @param {number} chain @param {Set<number>} best */
  draw(chain, best) {
    const { nodes, parent } = this.chains[chain];
    const [head, last] = [this.search.nodes[nodes[0]], this.search.nodes[nodes[nodes.length - 1]]];
    const { x, line } = /** @type {import("./search.js").Placed} */ (this.places.get(chain));
    const [left, y] = [x + 8, line * LINE_HEIGHT + 26];
    const kind = last.ended ? "ended" : last.kept ? "kept" : "dropped";
    const from = this.places.get(parent);
    let link = null;
    if (from) {
      const [px, py] = [from.x + 8 + this.widths[parent], from.line * LINE_HEIGHT + 26];
      link = makeSvg("path", {
        d: `M${px} ${py}C${px + GAP / 2} ${py} ${left - GAP / 2} ${y} ${left} ${y}`,
        class: best.has(nodes[0]) ? "best" : kind === "dropped" ? "dropped" : "kept"
      });
      this.lines.append(link);
    }
    this.links[chain] = link;
    const rank = this.rankOf(chain);
    const state = { ended: "finished", kept: "kept", dropped: "pruned" }[kind];
    const box = make(
      "div",
      {
        role: "treeitem",
        "aria-level": this.depth(chain) + 1,
        tabindex: "-1",
        "aria-selected": "false",
        class: `node ${best.has(nodes[0]) ? "best" : ""} ${kind}`,
        title: this.texts[chain],
        click: () => this.select(nodes[nodes.length - 1], true)
      },
      isolatedText(this.texts[chain]),
      make(
        "small",
        {},
        formatPercent(Math.exp(head.log_probability)) + (last.ended ? " ■" : ""),
        make("span", { class: "visually-hidden" }, ` ${state}`)
      )
    );
    box.style.left = `${left}px`;
    box.style.top = `${y - 19}px`;
    box.style.width = `${this.widths[chain]}px`;
    this.boxes[chain] = box;
    this.board.append(box);
    if (rank < 0) return;
    const text = joinTokens(tokensOf(this.search, pathTo(this.search, nodes[nodes.length - 1])));
    const leaf = make(
      "div",
      { class: "leaf", "aria-hidden": "true" },
      make("strong", { class: "number" }, `${rank + 1}. ${formatFixed(this.ranking.numbers[rank], 2)}`),
      " ",
      isolatedText(text)
    );
    leaf.style.left = `${left + this.widths[chain] + 8}px`;
    leaf.style.top = `${y - 19}px`;
    leaf.style.width = `${LEAF - 14}px`;
    this.board.append(leaf);
  }

  /** @param {number} chain */
  depth(chain) {
    let count = 0;
    for (let at = this.chains[chain].parent; at >= 0; at = this.chains[at].parent) count++;
    return count;
  }

  /** @param {number} node @param {boolean} tell */
  select(node, tell) {
    const own = /** @type {number} */ (this.chainOf.get(node));
    const path = new Set();
    for (let at = own; at >= 0; at = this.chains[at].parent) path.add(at);
    this.boxes.forEach((box, i) => {
      box.tabIndex = i === own ? 0 : -1;
      box.setAttribute("aria-selected", String(i === own));
      box.classList.toggle("on-path", path.has(i));
      this.links[i]?.classList.toggle("on-path", path.has(i));
    });
    if (tell) this.chosen(node);
  }

  /** Scroll the tree, not the page, to a node. @param {number} node */
  reveal(node) {
    const [box, room] = [this.boxes[this.chainOf.get(node) ?? 0], this.board.parentElement];
    if (!room) return;
    const right = box.offsetLeft + box.offsetWidth + (this.rankOf(this.chainOf.get(node) ?? 0) >= 0 ? LEAF : 0) + 24;
    room.scrollLeft = Math.max(0, Math.min(box.offsetLeft - 12, right - room.clientWidth));
    room.scrollTop = Math.max(0, box.offsetTop - room.clientHeight / 2);
  }

  /**
   * The chain on the next line above (−1) or below (1) that is nearest.
   * @param {number} chain
   * @param {1 | -1} step
   */
  nearest(chain, step) {
    const own = /** @type {import("./search.js").Placed} */ (this.places.get(chain));
    /** @param {import("./search.js").Placed} other */
    const far = ({ x, line }) => step * (line - own.line) * 1e6 + Math.abs(x - own.x);
    const others = [...this.places.values()].filter(({ line }) => step * (line - own.line) > 0);
    return others.sort((a, b) => far(a) - far(b))[0]?.chain;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const at = this.boxes.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (at < 0) return;
    const { parent, children, nodes } = this.chains[at];
    const siblings = parent >= 0 ? this.chains[parent].children : this.roots;
    /** @type {Record<string, number | undefined>} */
    const next = {
      ArrowLeft: parent,
      ArrowRight: children[0],
      ArrowUp: this.nearest(at, -1),
      ArrowDown: this.nearest(at, 1),
      Home: siblings[0],
      End: siblings[siblings.length - 1]
    };
    if (event.key === "Enter" || event.key === " ") this.chosen(nodes[nodes.length - 1]);
    else if (event.key in next) {
      const to = next[event.key];
      if (to === undefined || to < 0) return;
      this.select(this.chains[to].nodes[this.chains[to].nodes.length - 1], false);
      this.boxes[to].focus();
    } else return;
    event.preventDefault();
  }
}

/**
 * A path: its text and its numbers.
 * @param {App} app
 * @param {Search} search
 * @param {number} number
 * @param {HTMLElement} room
 */
function describePath(app, search, number, room) {
  const path = pathTo(search, number);
  const node = search.nodes[number];
  const rank = search.best.indexOf(number);
  const tokens = tokensOf(search, path);
  const ranking = rankingOf(search);
  const state = node.ended
    ? "The hypothesis is finished."
    : node.kept
      ? "The search continued from here."
      : "The search pruned it here.";
  const text = joinTokens(tokens) || visibleText(node.token);
  const table = make("table", { class: "path" }, make("tbody", {}, ...pathRows(search, path)));
  table.style.setProperty("--printed", String(Math.min(1, PRINTED / (180 + 76 * path.length))));
  const ranked = rank >= 0 ? `${ranking.name} ${formatFixed(ranking.numbers[rank], 4)}` : "";
  const place = rank >= 0 ? `Result ${rank + 1} of ${search.best.length}: ${ranked}. ` : "";
  app.announce(`${text}. ${place}${state}`);
  fill(
    room,
    make("h2", { dir: directionOf(text) }, isolatedText(text)),
    make(
      "p",
      {},
      place,
      "Sum of log-probabilities ",
      make("strong", { class: "number" }, formatFixed(node.total, 4)),
      `, ${plural(path.length, "token")}. ${state}`
    ),
    make(
      "div",
      { class: "table-room", tabindex: "0", role: "region", "aria-label": "Probabilities along the path" },
      table
    ),
    app.page.asks && rank > 0
      ? textButton("Show this result in Try", () => app.navigate({ view: "try", choice: String(rank), send: "yes" }))
      : null
  );
}

/**
 * @param {Search} search
 * @param {number[]} path
 */
function pathRows(search, path) {
  /** @type {[string, (number: number) => Node | string][]} */
  const rows = [
    ["token", (one) => isolatedText(visibleText(search.nodes[one].token))],
    ["probability", (one) => formatWeight(Math.exp(search.nodes[one].log_probability))],
    ["sum of log-probabilities", (one) => formatFixed(search.nodes[one].total, 3)]
  ];
  return rows.map(([name, cell]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...path.map((one) => make("td", {}, cell(one))))
  );
}
