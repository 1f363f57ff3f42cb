// Saving what the view "Read" shows: as SVG with real text, as PNG, as CSV, or as a link. The stage is read as shapes
// (rectangles, paths, texts), which both pictures are made of.

import { textButton } from "./controls.js";
import { make, makeSvg } from "./dom.js";
import { themeValue } from "./scale.js";

const MARGIN = 16; // pixels

/**
 * @typedef {{kind: "box", x: number, y: number, width: number, height: number, colour: string}
 *   | {kind: "path", d: string, fill: string, stroke: string, width: number, opacity: number}
 *   | {kind: "text", x: number, y: number, text: string, size: number, weight: string, family: string, colour: string,
 *      struck: boolean}} Shape
 */

/**
 * The buttons that save a stage.
 * @param {App} app
 * @param {import("./ribbons.js").Stage} stage
 * @param {() => string[][]} rows for a CSV file
 */
export function saveButtons(app, stage, rows) {
  const name = fileName(app);
  return make(
    "div",
    { class: "saving", role: "group", "aria-label": "Save" },
    make("span", { class: "quiet" }, "Save as "),
    textButton("SVG", () => download(`${name}.svg`, "image/svg+xml", svgText(stage.element))),
    textButton("PNG", () => void savePng(stage.element, `${name}.png`)),
    textButton("CSV", () => download(`${name}.csv`, "text/csv", csvText(rows()))),
    textButton("Copy link", () => void copyLink(app))
  );
}

/** @param {App} app */
function fileName(app) {
  const words = (app.page.title || "regard").normalize("NFKD").replace(/[^\p{L}\p{N}]+/gu, "-");
  return words.replace(/^-+|-+$/g, "").slice(0, 60).toLowerCase() || "regard";
}

/** @param {App} app */
async function copyLink(app) {
  try {
    await navigator.clipboard.writeText(location.href);
    app.announce("Link copied.");
  } catch {
    app.announce("The browser does not allow copying: the link is the address of this page.");
  }
}

/**
 * Rows of cells as CSV, as RFC 4180 has it.
 * @param {string[][]} rows
 */
export function csvText(rows) {
  const cell = (/** @type {string} */ text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

/**
 * @param {string} name
 * @param {string} type
 * @param {string | Blob} content
 */
function download(name, type, content) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = make("a", { download: name });
  link.href = address;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/**
 * What a stage shows, as shapes in its own pixels.
 * @param {HTMLElement} stage
 * @returns {Shape[]}
 */
function stageShapes(stage) {
  const box = stage.getBoundingClientRect();
  /** @type {Shape[]} */
  const shapes = [];
  for (const part of stage.querySelectorAll("svg.ribbons path")) {
    const look = getComputedStyle(part);
    shapes.push({
      kind: "path",
      d: part.getAttribute("d") ?? "",
      fill: look.fill,
      stroke: look.stroke,
      width: parseFloat(look.strokeWidth) || 0,
      opacity: Number(look.opacity)
    });
  }
  for (const part of stage.querySelectorAll(".bar")) {
    const { left, top, width, height } = part.getBoundingClientRect();
    const colour = getComputedStyle(part).backgroundColor;
    if (width) shapes.push({ kind: "box", x: left - box.left, y: top - box.top, width, height, colour });
  }
  const walker = document.createTreeWalker(stage, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const [text, parent] = [node.textContent?.trim() ?? "", node.parentElement];
    if (!text || !parent) continue;
    range.selectNodeContents(node);
    const { left, top, width, height } = range.getBoundingClientRect();
    if (!width) continue;
    const look = getComputedStyle(parent);
    const size = parseFloat(look.fontSize);
    shapes.push({
      kind: "text",
      x: left + width / 2 - box.left,
      y: top + height / 2 + size * 0.34 - box.top,
      text,
      size,
      weight: look.fontWeight,
      family: look.fontFamily,
      colour: parent instanceof SVGElement ? look.fill : look.color,
      struck: Boolean(parent.closest(".idle"))
    });
  }
  return shapes;
}

/**
 * A stage as an SVG file, whose texts are texts.
 * @param {HTMLElement} stage
 */
function svgText(stage) {
  const [width, height] = [stage.clientWidth + 2 * MARGIN, stage.clientHeight + 2 * MARGIN];
  const root = makeSvg("svg", { viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, width, height });
  root.append(makeSvg("rect", { x: -MARGIN, y: -MARGIN, width, height, fill: themeValue("paper") }));
  for (const shape of stageShapes(stage)) {
    if (shape.kind === "box") {
      const { x, y, width: wide, height: high, colour } = shape;
      root.append(makeSvg("rect", { x, y, width: wide, height: high, rx: 2, fill: colour }));
    } else if (shape.kind === "path") {
      const { d, fill, stroke, width: thick, opacity } = shape;
      root.append(makeSvg("path", { d, fill, stroke, "stroke-width": thick, opacity }));
    } else {
      const text = makeSvg("text", {
        x: shape.x.toFixed(1),
        y: shape.y.toFixed(1),
        "text-anchor": "middle",
        "font-size": shape.size,
        "font-family": shape.family,
        "font-weight": shape.weight,
        fill: shape.colour,
        "text-decoration": shape.struck ? "line-through" : "none"
      });
      text.textContent = shape.text;
      root.append(text);
    }
  }
  return new XMLSerializer().serializeToString(root);
}

/**
 * @param {HTMLElement} stage
 * @param {string} name
 */
async function savePng(stage, name) {
  const times = 2;
  const canvas = document.createElement("canvas");
  canvas.width = (stage.clientWidth + 2 * MARGIN) * times;
  canvas.height = (stage.clientHeight + 2 * MARGIN) * times;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.fillStyle = themeValue("paper");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.setTransform(times, 0, 0, times, MARGIN * times, MARGIN * times);
  pen.textAlign = "center";
  for (const shape of stageShapes(stage)) {
    if (shape.kind === "box") {
      pen.fillStyle = shape.colour;
      pen.fillRect(shape.x, shape.y, shape.width, shape.height);
    } else if (shape.kind === "path") {
      pen.globalAlpha = shape.opacity;
      const path = new Path2D(shape.d);
      if (shape.fill !== "none") {
        pen.fillStyle = shape.fill;
        pen.fill(path);
      } else {
        pen.strokeStyle = shape.stroke;
        pen.lineWidth = shape.width;
        pen.stroke(path);
      }
      pen.globalAlpha = 1;
    } else {
      pen.fillStyle = shape.colour;
      pen.font = `${shape.weight} ${shape.size}px ${shape.family}`;
      pen.fillText(shape.text, shape.x, shape.y);
      if (shape.struck) {
        const { width } = pen.measureText(shape.text);
        pen.fillRect(shape.x - width / 2, shape.y - shape.size * 0.3, width, Math.max(1, shape.size / 14));
      }
    }
  }
  const blob = await new Promise((/** @type {(blob: Blob | null) => void} */ done) => canvas.toBlob(done));
  if (blob) download(name, "image/png", blob);
}
