// The view "Alignment": which output word attends to which input word.

import { Chart } from "./chart.js";
import { attentionChoice, headChoice, patchFigure, textButton, markPressed, mutedText, notice, scaleChoice, wordButtons, sizeText, weightTable, toggle, traceNumber, weightList } from "./controls.js";
import { fill, isolatedText, make, pickNumber } from "./dom.js";
import { plural, formatWeight } from "./numbers.js";
import { groupTokens, isSmall, maskFunction, wholeMatrix, matrixPlane, shiftRows } from "./planes.js";
import { hasWords, tokenUnits, wordUnits } from "./text.js";
import { attentionSize } from "./weights.js";

const MAX_SENTENCE = 120; // words of a sentence that can be read as one

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
  const name = `${one.name}, ${head}`;
  return { plane: matrixPlane(name, values, rows.kept, columns, masked), rows: rows.kept, columns, values };
}

/**
 * How sure the model was of each unit: the geometric mean of the probabilities of its tokens.
 * @param {Written} written
 * @param {Unit[]} units
 */
export function confidence(written, units) {
  return units.map(({ first, last }) => {
    const own = written.log_probabilities.slice(first, last + 1);
    return Math.exp(own.reduce((sum, one) => sum + one, 0) / own.length);
  });
}

/** @type {View} */
export const alignmentView = {
  name: "alignment",
  title: "Alignment",
  open(app, room) {
    const number = traceNumber(app);
    const trace = app.traces[number];
    const chosen = selectedAttention(trace, app.state);
    const one = trace.attentions[chosen.attention];
    const scale = scaleChoice(app, "linear");
    const anyWords = hasWords(trace.sides[one.queries]) || hasWords(trace.sides[one.keys]);
    const by = anyWords && app.state.units !== "tokens" ? "words" : "tokens";
    const best = /** @type {[string, string][]} */ (
      trace.alignment ? [["best", `best alignment: ${trace.attentions[trace.alignment.attention].name}`]] : []
    );
    const controls = make(
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
            (head) => app.navigate({ head, row: "", column: "" }),
            [["mean", "mean of all heads"]]
          ),
      anyWords
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
      scale.element
    );
    const main = make("div", { class: "main" });
    const aside = make("aside", { class: "aside", "aria-label": "Pinned word" });
    fill(room, controls, make("div", { class: "split" }, main, aside));
    if (!isSmall(trace, one)) {
      fill(
        main,
        notice(
          `This map has ${sizeText(trace, one)} weights, too many to show at once. `,
          textButton("Open in Long", () =>
            app.navigate({ view: "long", attention: String(chosen.attention), head: String(Math.max(0, chosen.head)) })
          )
        )
      );
      return;
    }
    let closed = false;
    app.onClose(() => {
      closed = true;
    });
    alignmentMatrix(app, number, chosen, by).then(
      (found) => {
        if (!closed) showAlignment(app, trace, chosen, found, scale, main, aside);
      },
      (error) => fill(main, make("p", { class: "wrong" }, error.message))
    );
  }
};

/**
 * @param {App} app
 * @param {Trace} trace
 * @param {{best: boolean, attention: number, head: number, offset: number}} chosen
 * @param {Awaited<ReturnType<typeof alignmentMatrix>>} found
 * @param {{shape: Shape, whole: boolean}} scale
 * @param {HTMLElement} main
 * @param {HTMLElement} aside
 */
function showAlignment(app, trace, chosen, found, scale, main, aside) {
  const one = trace.attentions[chosen.attention];
  const { plane, rows, columns, values } = found;
  const written = trace.written?.side === one.queries ? trace.written : null;
  const sure = written && confidence(written, rows);
  const chart = new Chart(app, plane, {
    shape: scale.shape,
    whole: scale.whole,
    marks: sure ? { title: "confidence", values: sure } : undefined,
    onPoint: (row) => showPatches(chart.pinned.row ?? row),
    onPick: (row, column) => {
      const same = chart.pinned.row === row && chart.pinned.column === column;
      pin(same ? null : row, same ? null : column);
    }
  });
  const image = make("div");
  /** @param {number | null} row whose weights lie on the patches of an image; null for the mean of all */
  const showPatches = (row) => {
    const [to, wide] = [trace.sides[one.keys], columns.length];
    if (!to.grid || wide !== to.tokens.length) return;
    const own = row === null ? meanRow(values, rows.length, wide) : values.subarray(row * wide, (row + 1) * wide);
    fill(image, mutedText(row === null ? "Mean of all rows" : isolatedText(rows[row].name)), patchFigure(to, own));
  };
  /** @param {number | null} row @param {number | null} column */
  const pin = (row, column) => {
    chart.pinned = { row, column };
    chart.redraw();
    app.updateState({ row: row === null ? "" : String(row), column: column === null ? "" : String(column) });
    const wide = columns.length;
    markPressed(source, column);
    markPressed(output, row);
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
      sure && row !== null
        ? make("p", {}, "Confidence ", make("strong", { class: "number" }, formatWeight(sure[row])))
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
        : mutedText("Click a word or a cell of the map to pin it and list its largest weights."),
      image
    );
    showPatches(row);
  };
  const source = wordButtons(one.keys, columns, (j) => pin(chart.pinned.row, chart.pinned.column === j ? null : j));
  const output = wordButtons(one.queries, rows, (i) => pin(chart.pinned.row === i ? null : i, chart.pinned.column));
  fill(
    main,
    make(
      "div",
      { class: "lines" },
      columns.length > MAX_SENTENCE ? null : source,
      one.queries === one.keys || rows.length > MAX_SENTENCE ? null : output
    ),
    chart.element,
    sure
      ? mutedText(
          "Bars beside the rows: confidence, the geometric mean of the model's probabilities for the tokens of a " +
            "word. A confident model can be wrong."
        )
      : null,
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

/**
 * @param {Float32Array} values
 * @param {number} rows
 * @param {number} columns
 */
function meanRow(values, rows, columns) {
  const mean = new Float32Array(columns);
  values.forEach((value, b) => {
    mean[b % columns] += value / rows;
  });
  return mean;
}
