// The matrix of an attention, by words or subwords, with a list of the largest weights of what is pinned.

import { Chart } from "./chart.js";
import { attentionChoice, closing, failure, headChoice, textButton, mutedText, notice, scaleChoice, sizeText, weightTable, toggle, traceNumber, weightList } from "./controls.js";
import { fill, isolatedText, make, pickNumber } from "./dom.js";
import { plural } from "./numbers.js";
import { attentionTitle, groupTokens, isSmall, maskFunction, wholeMatrix, matrixPlane, shiftRows } from "./planes.js";
import { showScore } from "./scores.js";
import { hasWords, tokenUnits, wordUnits } from "./text.js";
import { attentionSize } from "./weights.js";

/**
 * What to show when nothing was chosen: the best known, or else the last attention from one side to another.
 * @param {Trace} trace
 */
export function defaultAttention(trace) {
  const crossing = trace.attentions.findLastIndex((one) => one.queries !== one.keys);
  return trace.alignment?.attention ?? (crossing >= 0 ? crossing : trace.attentions.length - 1);
}

/**
 * The attention, the head (−1 for the mean of all) and the offset of rows that the state asks for.
 * @param {Trace} trace
 * @param {State} state
 * @returns {{best: boolean, attention: number, head: number, offset: number}}
 */
export function selectedAttention(trace, state) {
  const best = trace.alignment && (state.attention === undefined || state.attention === "best");
  const attention = best
    ? (trace.alignment?.attention ?? 0)
    : pickNumber(state.attention, trace.attentions.length, defaultAttention(trace));
  const usual = best ? (trace.alignment?.head ?? -1) : -1;
  const head = best ? usual : pickNumber(state.head, trace.attentions[attention].heads, -1);
  return { best: Boolean(best), attention, head, offset: best ? (trace.alignment?.offset ?? 0) : 0 };
}

/**
 * Rows and columns as words or tokens, with the weights between them.
 * @param {App} app
 * @param {number} number of the trace
 * @param {{attention: number, head: number, offset: number}} chosen
 * @param {string} by "words" or "tokens"
 */
export async function alignmentMatrix(app, number, chosen, by) {
  const trace = app.traces[number];
  const one = trace.attentions[chosen.attention];
  const sizes = attentionSize(trace, one);
  const [from, to] = [trace.sides[one.queries], trace.sides[one.keys]];
  const units = by === "words" && hasWords(from) ? wordUnits(from) : tokenUnits(from);
  const rows = shiftRows(units, sizes.rows, chosen.offset);
  const columns = by === "words" && hasWords(to) ? wordUnits(to) : tokenUnits(to);
  const values = groupTokens(
    await wholeMatrix(app, number, chosen.attention, chosen.head),
    sizes.columns,
    rows.moved,
    columns
  );
  const hidden = maskFunction(one, sizes.rows, sizes.columns);
  /** @type {Plane["masked"]} */
  const masked = (i, j) => hidden(rows.moved[i].last, columns[j].first) && hidden(rows.moved[i].first, columns[j].last);
  const head = chosen.head < 0 ? `mean of ${plural(one.heads, "head")}` : `head ${chosen.head}`;
  const plane = matrixPlane(`${attentionTitle(trace, one)}, ${head}`, values, rows.kept, columns, masked);
  return { plane: { ...plane, code: `${one.name}, ${head}` }, rows: rows.kept, columns, values };
}

/**
 * The choice of an attention, of a head, of words or subwords.
 * @param {App} app
 * @param {number} number
 * @param {{best: boolean, attention: number, head: number}} chosen
 * @param {string} by "words" or "tokens"
 * @param {...(HTMLElement | null)} more
 */
export function selectionControls(app, number, chosen, by, ...more) {
  const trace = app.traces[number];
  const one = trace.attentions[chosen.attention];
  const anyWords = hasWords(trace.sides[one.queries]) || hasWords(trace.sides[one.keys]);
  const pointer = trace.alignment ? trace.attentions[trace.alignment.attention] : null;
  const best = /** @type {[string, string][]} */ (
    pointer ? [["best", `best alignment: ${attentionTitle(trace, pointer)}`]] : []
  );
  return make(
    "div",
    { class: "controls" },
    attentionChoice(
      app,
      number,
      chosen.best ? "best" : String(chosen.attention),
      (attention) => app.navigate({ attention, head: "", row: "", column: "" }),
      best
    ),
    chosen.best
      ? null
      : headChoice(
          one,
          chosen.head < 0 ? "mean" : String(chosen.head),
          (head) => app.navigate({ attention: String(chosen.attention), head, row: "", column: "" }),
          [["mean", "mean of all heads"]]
        ),
    anyWords && by
      ? toggle(
          "By",
          [
            ["words", "words"],
            ["tokens", "subwords"]
          ],
          by,
          (units) => app.navigate({ units, row: "", column: "" })
        )
      : null,
    ...more
  );
}

/**
 * The matrix of an attention, with its controls: the part of the view "Read" that opens on demand.
 * @param {App} app
 * @param {HTMLElement} room
 */
export function openMatrix(app, room) {
  const number = traceNumber(app);
  const trace = app.traces[number];
  const chosen = selectedAttention(trace, app.state);
  const one = trace.attentions[chosen.attention];
  const scale = scaleChoice(app, "linear");
  const anyWords = hasWords(trace.sides[one.queries]) || hasWords(trace.sides[one.keys]);
  const by = anyWords && app.state.units !== "tokens" ? "words" : "tokens";
  const main = make("div", { class: "main" });
  const aside = make("aside", { class: "aside", "aria-label": "Pinned row and column" });
  fill(
    room,
    selectionControls(app, number, chosen, by, scale.element),
    make("div", { class: "split" }, main, aside)
  );
  if (!isSmall(trace, one)) {
    fill(
      main,
      notice(
        `This map has ${sizeText(trace, one)} weights, too many to show at once. `,
        textButton("Open in Map", () =>
          app.navigate({ view: "map", attention: String(chosen.attention), head: String(Math.max(0, chosen.head)) })
        )
      )
    );
    return;
  }
  const view = closing(app);
  alignmentMatrix(app, number, chosen, by).then(
    (found) => {
      if (!view.closed) showAlignment(app, number, chosen, found, scale, main, aside);
    },
    (error) => fill(main, failure(error))
  );
}

/**
 * @param {App} app
 * @param {number} number
 * @param {{attention: number, head: number, offset: number}} chosen
 * @param {Awaited<ReturnType<typeof alignmentMatrix>>} found
 * @param {{shape: Shape, whole: boolean}} scale
 * @param {HTMLElement} main
 * @param {HTMLElement} aside
 */
function showAlignment(app, number, chosen, found, scale, main, aside) {
  const { plane, rows, columns, values } = found;
  const score = make("section", { class: "weights score", "aria-live": "polite" });
  const chart = new Chart(app, plane, {
    shape: scale.shape,
    whole: scale.whole,
    onPick: (row, column) => {
      const same = chart.pinned.row === row && chart.pinned.column === column;
      pin(same ? null : row, same ? null : column);
    }
  });
  /** @param {number | null} row @param {number | null} column */
  const pin = (row, column) => {
    chart.pinned = { row, column };
    chart.redraw();
    app.updateState({ row: row === null ? "" : String(row), column: column === null ? "" : String(column) });
    const wide = columns.length;
    const ofRow = row === null ? null : values.subarray(row * wide, (row + 1) * wide);
    const ofColumn = column === null ? null : rows.map((_, i) => values[i * wide + column]);
    fill(
      aside,
      ofRow && row !== null
        ? weightList(
            [isolatedText(rows[row].name), document.createTextNode(" attends to")],
            ofRow,
            (j) => columns[j].name
          )
        : null,
      ofColumn && column !== null
        ? weightList(
            [isolatedText(columns[column].name), document.createTextNode(" is attended to by")],
            ofColumn,
            (i) => rows[i].name
          )
        : null,
      ofRow || ofColumn
        ? textButton("Unpin", () => pin(null, null))
        : mutedText("Click a cell of the map to list the largest weights of its row and of its column."),
      score
    );
    fill(score);
    const [down, across] = [rows[row ?? -1], columns[column ?? -1]];
    // A score is of two tokens and one head; a file would only say that it has none.
    if (!app.page.served || chosen.head < 0 || down?.first !== down?.last || across?.first !== across?.last) return;
    if (down && across)
      void showScore(
        app,
        {
          trace: number,
          attention: chosen.attention,
          head: chosen.head,
          row: down.first + chosen.offset,
          column: across.first
        },
        score
      );
  };
  fill(
    main,
    chart.element,
    chosen.offset
      ? mutedText(
          `Rows are taken ${plural(Math.abs(chosen.offset), "step")} ${chosen.offset > 0 ? "after" : "before"} the ` +
            "word was generated, where this attention aligns best; words without such a row are left out."
        )
      : null,
    weightTable(plane)
  );
  chart.layout();
  const row = pickNumber(app.state.row, rows.length, -1);
  const column = pickNumber(app.state.column, columns.length, -1);
  pin(row < 0 ? null : row, column < 0 ? null : column);
}
