// Images in the view "Read": the picture, and over it where the model looked or which patches mattered. The pixels are
// in the trace, and are drawn on a canvas: the page loads nothing.

import { selectedAttention, selectionControls } from "./alignment.js";
import { closing, failure, mutedText, toggle, TWO_MODES } from "./controls.js";
import { fill, isTouched, make } from "./dom.js";
import { extent, formatFixed, formatPercent, formatWeight } from "./numbers.js";
import { attentionTitle, isSmall, wholeMatrix } from "./planes.js";
import { labelVerdict } from "./predictions.js";
import { leaveOut, missingInfluence } from "./refining.js";
import { Scale } from "./scale.js";
import { paintBlocks } from "./tiles.js";
import { MIN_EFFECT } from "./verdict.js";
import { READINGS } from "./views.js";
import { decodeBytes } from "./weights.js";

/** @typedef {{width: number, height: number, pixels: Uint8ClampedArray}} Picture RGBA */

/**
 * The picture of a side, if the trace has its pixels.
 * @param {Side} side
 * @returns {Picture | null}
 */
function pictureOf(side) {
  if (!side.image) return null;
  const { width, height, channels } = side.image;
  const bytes = decodeBytes(side.image.pixels);
  if (bytes.length !== width * height * channels) return null;
  const pixels = new Uint8ClampedArray(width * height * 4).fill(255);
  for (let p = 0; p < width * height; p++)
    for (let c = 0; c < 3; c++) pixels[4 * p + c] = bytes[p * channels + (channels < 3 ? 0 : c)];
  return { width, height, pixels };
}

/**
 * The picture with heat over it: a patch is as bright as its share of the largest one.
 * @param {HTMLCanvasElement} canvas
 * @param {Picture} picture
 * @param {[number, number]} grid
 * @param {Float32Array | null} heat one number a patch
 */
function paintPicture(canvas, picture, [rows, columns], heat) {
  const { width, height, pixels } = picture;
  const high = heat ? Math.max(extent(heat).high, 1e-12) : 1;
  canvas.width = width;
  canvas.height = height;
  const out = new Uint8ClampedArray(pixels);
  for (let y = 0; heat && y < height; y++)
    for (let x = 0; x < width; x++) {
      const patch = Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width);
      const share = Math.max(0, Math.min(1, heat[patch] / high)) || 0;
      const p = 4 * (y * width + x);
      const grey = 0.3 * pixels[p] + 0.59 * pixels[p + 1] + 0.11 * pixels[p + 2];
      // Without weight: grey and pale. With weight: the picture's own colours, tinted towards the accent.
      for (let c = 0; c < 3; c++) {
        const pale = 0.45 * grey + 0.55 * 235;
        const tinted = 0.62 * pixels[p + c] + 0.38 * [240, 96, 40][c];
        out[p + c] = pale + (tinted - pale) * share;
      }
    }
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const data = pen.createImageData(width, height);
  data.data.set(out);
  pen.putImageData(data, 0, 0);
}

/**
 * @param {App} app
 * @param {number} number
 * @param {HTMLElement} room
 */
function pictureReading(app, number, room) {
  const trace = app.traces[number];
  const chosen = selectedAttention(trace, app.state);
  const one = trace.attentions[chosen.attention];
  const side = trace.sides[one.keys];
  const grid = side.grid;
  if (!grid || !isSmall(trace, one)) {
    const text = "This attention does not look at the patches of the image. Choose another one.";
    fill(room, mutedText(text), selectionControls(app, number, chosen, ""));
    return;
  }
  const picture = pictureOf(side);
  const effect = patchEffects(trace, one.keys);
  const mode = effect && app.state.show !== "looked" ? "mattered" : "looked";
  const blocks = inBlocks(trace);
  const figures = make("div", { class: "pictures" });
  const detail = make("p", { class: "detail" });
  const head = chosen.head < 0 ? "mean of all heads" : `head ${chosen.head}`;
  fill(
    room,
    make("p", { class: "verdict" }, ...labelVerdict(trace), effect ? strongestPatch(grid, effect, blocks) : ""),
    effect ? toggle("Show", TWO_MODES, mode, (show) => app.navigate({ show })) : null,
    mode === "looked" ? selectionControls(app, number, chosen, "") : null,
    figures,
    detail,
    mutedText(
      mode === "mattered"
        ? `What mattered: how much less likely the label becomes when ${blocks ? "a block of patches" : "a patch"} ` +
            "is replaced by grey; the redder, the more." +
            (blocks && trace.refines ? " Click a block to see its patches." : "")
        : `Where it looked: ${attentionTitle(trace, one)}, ${head}. ${isTouched() ? "Tap" : "Point at"} a patch to ` +
            "see what it looked at; " +
            "otherwise it is the class token, or the mean of all rows."
    ),
    effect ? null : mutedText(...missingInfluence(app, number)),
    picture ? null : mutedText("The pixels are not in this trace. To see the picture: regard look MODEL IMAGE")
  );
  const view = closing(app);
  wholeMatrix(app, number, chosen.attention, chosen.head).then(
    (values) => {
      if (view.closed) return;
      const shown = mode === "mattered" ? effect : null;
      showPictures(side, picture, shown, values, figures, detail, (patch) => refineBlock(app, number, patch, detail));
    },
    (error) => fill(figures, failure(error))
  );
}

/**
 * @param {Side} side
 * @param {Picture | null} picture
 * @param {Float32Array | null} effect of each patch; null to show the weights
 * @param {Float32Array} values of the whole map
 * @param {HTMLElement} room
 * @param {HTMLElement} detail
 * @param {(patch: number) => void} refine what a click does where effects are shown
 */
function showPictures(side, picture, effect, values, room, detail, refine) {
  const grid = /** @type {[number, number]} */ (side.grid);
  const [lead, wide] = [side.lead ?? 0, side.tokens.length];
  const rows = Math.round(values.length / wide);
  /** @param {number | null} patch */
  const heatOf = (patch) => {
    if (effect) return effect;
    const own = new Float32Array(wide);
    if (patch !== null || lead) own.set(values.subarray((patch ?? 0) * wide, ((patch ?? 0) + 1) * wide));
    else values.forEach((value, b) => (own[b % wide] += value / rows));
    return own.slice(lead, lead + grid[0] * grid[1]);
  };
  if (!picture) {
    fill(room, patchFigure(grid, heatOf(null)));
    return;
  }
  const names = [
    `The image, ${picture.width} × ${picture.height} pixels`,
    effect ? "The image, with the patches that mattered" : "The image, with the weights on its patches"
  ];
  const [plain, heated] = names.map((label) => make("canvas", { class: "picture", role: "img", "aria-label": label }));
  paintPicture(plain, picture, grid, null);
  paintPicture(heated, picture, grid, heatOf(null));
  const captions = ["the image", effect ? "what mattered" : "where it looked"];
  fill(
    room,
    ...[plain, heated].map((one, i) => make("figure", {}, one, make("figcaption", { class: "quiet" }, captions[i])))
  );
  /** The patch under the pointer. @param {MouseEvent} event */
  const under = (event) => {
    const box = /** @type {HTMLElement} */ (event.currentTarget).getBoundingClientRect();
    const row = Math.min(grid[0] - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * grid[0])));
    const column = Math.min(grid[1] - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * grid[1])));
    return { row, column, patch: row * grid[1] + column };
  };
  /** @param {PointerEvent} event */
  const point = (event) => {
    const { row, column, patch } = under(event);
    const heat = heatOf(lead + patch);
    if (!effect) paintPicture(heated, picture, grid, heat);
    const most = heat.indexOf(extent(heat).high);
    detail.textContent = effect
      ? `Row ${row + 1}, column ${column + 1}: ${formatWeight(effect[patch])} nats.`
      : `Row ${row + 1}, column ${column + 1} looked most at row ${Math.floor(most / grid[1]) + 1}, ` +
        `column ${(most % grid[1]) + 1}: ${formatPercent(heat[most])}.`;
  };
  for (const canvas of [plain, heated]) {
    canvas.addEventListener("pointermove", point);
    if (effect) canvas.addEventListener("click", (event) => refine(under(event).patch));
    canvas.addEventListener("pointerleave", () => {
      paintPicture(heated, picture, grid, heatOf(null));
      detail.textContent = "";
    });
  }
}

/**
 * The weights on the patches of an image whose pixels are not in the trace.
 * @param {[number, number]} grid
 * @param {Float32Array} values
 */
function patchFigure([rows, columns], values) {
  const { low, high } = extent(values);
  const range = `from ${formatWeight(Math.min(0, low))} to ${formatWeight(high)}`;
  const label = `Weights on ${rows} × ${columns} patches of the image, ${range}`;
  const canvas = make("canvas", { class: "patches", role: "img", "aria-label": label });
  const corner = { top: 0, left: 0, down: 1, across: 1 };
  const plane = { rows, columns, masked: () => false };
  paintBlocks(canvas, { rows, columns, values }, new Scale("linear", low, high), plane, corner);
  return make("figure", {}, canvas, make("figcaption", { class: "quiet" }, label));
}

/**
 * The patch that mattered most, in words.
 * @param {[number, number]} grid
 * @param {Float32Array} effect
 * @param {boolean} blocks whether patches were made grey in blocks
 */
function strongestPatch([, columns], effect, blocks) {
  const { high } = extent(effect);
  const at = effect.indexOf(high);
  const what = blocks ? "block of patches" : "patch";
  if (high < MIN_EFFECT) return `No ${what} mattered by itself: at most ${formatFixed(high, 2)} nats.`;
  const place = `The ${what} at row ${Math.floor(at / columns) + 1}, column ${(at % columns) + 1}`;
  return `${place} mattered most: ${formatFixed(high, 2)} nats.`;
}

/** Whether patches were made grey in blocks. @param {Trace} trace */
function inBlocks({ influence }) {
  return influence?.tokens.some((tokens) => tokens.length > 1) ?? false;
}

/**
 * Make each patch of a block grey by itself, where there is a model, and show the picture again.
 * @param {App} app
 * @param {number} number
 * @param {number} patch
 * @param {HTMLElement} detail
 */
async function refineBlock(app, number, patch, detail) {
  const { influence, sides, refines } = app.traces[number];
  const lead = sides[influence?.columns ?? ""]?.lead ?? 0;
  const block = influence?.tokens.find((tokens) => tokens.length > 1 && tokens.includes(patch + lead));
  if (!block || !refines) return;
  detail.textContent = `Making each of ${block.length} patches grey …`;
  try {
    const patches = block.map((token) => token - lead);
    await leaveOut(app, number, patches);
    if (detail.isConnected) app.navigate({});
  } catch (error) {
    fill(detail, make("span", { class: "wrong", role: "alert" }, /** @type {Error} */ (error).message));
  }
}

/**
 * The effect of every patch on the label, in nats, if the trace has it.
 * @param {Trace} trace
 * @param {string} name of the side of the image
 * @returns {Float32Array | null}
 */
function patchEffects(trace, name) {
  const { influence } = trace;
  const { grid, lead } = trace.sides[name];
  if (!influence || !grid || influence.columns !== name) return null;
  const effect = new Float32Array(grid[0] * grid[1]);
  influence.tokens.forEach((tokens, c) => {
    for (const token of tokens) effect[token - (lead ?? 0)] = Math.max(0, influence.values[0]?.[c] ?? 0);
  });
  return effect;
}

READINGS.push({ fits: (trace) => Object.values(trace.sides).some((side) => side.grid), open: pictureReading });
