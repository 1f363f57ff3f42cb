// How tokens and words are shown: invisible characters get a symbol, and a side is divided into words or tokens.

// Controls, format characters (zero-width, joiners, direction marks), spaces, private and lone surrogates; and what
// is printable according to Unicode, and invisible. inspection/labels.py has the same rules.
const INVISIBLE = /^[\p{C}\p{Z}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]?$/u;
const VARIANT = /[\ufe00-\ufe0f\u{e0100}-\u{e01ef}]$/u;

/**
 * A token as people can see it. Nothing is left out: a character that has no shape is shown as its number, except where
 * it gives one to the character before, such as a joiner inside an emoji.
 * @param {string} token
 */
export function visibleText(token) {
  const characters = [...token];
  let [out, place] = ["", ""]; // the place is the last character with what changed it; it takes marks and joiners
  characters.forEach((one, i) => {
    const mark = /\p{M}/u.test(one);
    if (/\p{Zs}/u.test(one)) [out, place] = [out + "␣", ""];
    else if (
      place &&
      (modifies(one, place) || (/[\u200c\u200d]/.test(one) && !INVISIBLE.test(characters[i + 1] ?? "")))
    ) {
      out += one;
      place += one;
    } else if (INVISIBLE.test(one) || (place && VARIANT.test(one))) [out, place] = [out + codePoint(one), ""];
    else {
      out += mark && !place ? "◌" + one : one;
      place = mark || place.endsWith("\u200d") ? place + one : one;
    }
  });
  return out || "∅";
}

/**
 * Whether a character changes what is before it: a variant, a skin tone, or a tag of a flag.
 * @param {string} character
 * @param {string} place
 */
function modifies(character, place) {
  if (/[\u{e0020}-\u{e007f}]/u.test(character)) return place.startsWith("🏴");
  return /[🏻-🏿]/u.test(character) || (VARIANT.test(character) && !VARIANT.test(place));
}

/** @param {string} character */
function codePoint(character) {
  return `‹U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}›`;
}

/**
 * Every token by itself.
 * @param {Side} side
 * @returns {Unit[]}
 */
export function tokenUnits(side) {
  return side.tokens.map((token, i) => ({ name: visibleText(token), first: i, last: i, word: null }));
}

/**
 * Words, and between them the tokens that belong to no word (such as the end).
 * @param {Side} side
 * @returns {Unit[]}
 */
export function wordUnits(side) {
  const text = [...(side.text ?? "")];
  const words = side.words ?? [];
  const free = new Set(side.tokens.keys());
  /** @type {Unit[]} */
  const units = words.map((word, i) => {
    for (let t = word.first; t <= word.last; t++) free.delete(t);
    const name = visibleText(text.slice(word.start, word.end).join(""));
    return { name, first: word.first, last: word.last, word: i };
  });
  for (const t of free) units.push({ name: visibleText(side.tokens[t]), first: t, last: t, word: null });
  return units.sort((a, b) => a.first - b.first);
}

/** The units of a side that people read: not the model's own tokens, if the side has words. @param {Side} side */
export function readableUnits(side) {
  if (!hasWords(side)) return tokenUnits(side);
  return wordUnits(side).filter((unit) => unit.word !== null || !isSeparator(unit.name));
}

/** @param {Side} side */
export function hasWords(side) {
  return side.text != null && (side.words?.length ?? 0) > 0;
}

/**
 * The text of a side: its own, or its tokens put together as SentencePiece does.
 * @param {Side} side
 */
export function textOf(side) {
  return side.text ?? joinTokens(side.tokens);
}

const RIGHT_TO_LEFT = new RegExp(
  `[${["Arabic", "Hebrew", "Syriac", "Thaana", "Nko", "Adlam"].map((name) => `\\p{Script=${name}}`).join("")}]`,
  "u"
);

/**
 * The direction of a text: that of its first letter. `dir="auto"` does not look into isolated parts of a line.
 * @param {string} text
 * @returns {"ltr" | "rtl"}
 */
export function directionOf(text) {
  const letter = /\p{L}/u.exec(text);
  return letter && RIGHT_TO_LEFT.test(letter[0]) ? "rtl" : "ltr";
}

/** @param {string} text whether a sentence may end with this word */
export function endsSentence(text) {
  return /[.!?…。！？؟۔।][\p{Pe}\p{Pf}"'»]*$/u.test(text);
}

/** @param {string[]} tokens @param {boolean} [spaced] whether ▁ is a space, as in these tokens by default */
export function joinTokens(tokens, spaced = tokens.some((token) => token.includes("▁"))) {
  const inner = tokens.filter((token) => !isSeparator(token));
  return spaced ? inner.join("").replaceAll("▁", " ").trim() : inner.join(" ");
}

/**
 * Whether a token looks like a sign of the model's own, such as </s> or [SEP]; a text can hold such a token too.
 * @param {string} token
 */
export function isSeparator(token) {
  return /^(<\/?[\w| -]{1,24}>|\[[A-Z]{1,12}\])$/.test(token);
}

/**
 * The places of a longest common subsequence in two lists of words.
 * @param {string[]} before
 * @param {string[]} after
 * @returns {[number, number][]}
 */
export function pairWords(before, after) {
  /** @type {[number, number][]} */
  const pairs = [];
  let [i, j] = [0, 0];
  for (const { kind } of diffWords(before, after)) {
    if (kind === "same") pairs.push([i++, j++]);
    else if (kind === "gone") i++;
    else j++;
  }
  return pairs;
}

/**
 * What a longest common subsequence leaves alone, and what it drops and adds, for two lists of words.
 * @param {string[]} before
 * @param {string[]} after
 * @returns {{kind: "same" | "gone" | "new", text: string}[]}
 */
export function diffWords(before, after) {
  const wide = after.length + 1;
  const best = new Uint32Array((before.length + 1) * wide);
  for (let i = before.length - 1; i >= 0; i--)
    for (let j = after.length - 1; j >= 0; j--)
      best[i * wide + j] =
        before[i] === after[j]
          ? best[(i + 1) * wide + j + 1] + 1
          : Math.max(best[(i + 1) * wide + j], best[i * wide + j + 1]);
  /** @type {{kind: "same" | "gone" | "new", text: string}[]} */
  const out = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      out.push({ kind: "same", text: after[j] });
      i++;
      j++;
    } else if (j < after.length && (i === before.length || best[i * wide + j + 1] > best[(i + 1) * wide + j])) {
      out.push({ kind: "new", text: after[j++] });
    } else out.push({ kind: "gone", text: before[i++] });
  }
  return out;
}
