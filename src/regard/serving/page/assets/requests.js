// Requests to the server, and the translation of a text that changes while it is typed: sentence by sentence, what is
// known is not asked for again, a new text cancels the requests of the one before, and only the newest is shown.

/**
 * @typedef {{ source: number, target: number, weight: number }} Link
 * @typedef {{ start: number, end: number }} Span
 * @typedef {{ source: Span[], target: Span[], links: Link[] }} Alignment
 * @typedef {{ text: string, alignment: Alignment | null }} Result
 * @typedef {{ text: string, start: number, known: Result | null, direction: Direction }} Sentence
 * @typedef {{ source: string, target: string }} Direction
 * @typedef {{ code: string, name: string, targets: string[] }} Language
 */

const FIRST_BATCH = 8;
const MAX_KNOWN = 2000;
const MAX_WAIT = 60;
const SWITCH_LENGTH = 12;
/** A sentence does not end here, whatever the browser thinks. */
const ABBREVIATION = /(?:^|[\s(])(?:\p{Lu}|Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|cf|pp?|e\.g|i\.e|z\.B|d\.h|bzw|ca|Mme)\.\s*$/u;

/** An answer that is not a result: `status` is 0 if there was no answer at all. */
export class RequestError extends Error {
  /** @param {number} status @param {string} message @param {number} retryAfter in seconds, 0 if not said */
  constructor(status, message, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }

  /** What to tell the user, and what to do. */
  get advice() {
    if (this.status === 0) return navigator.onLine ? "The server does not answer." : "You are offline.";
    if (this.status === 429) return "The server is busy.";
    if (this.status === 504) return "The server ran out of time. A shorter text may work.";
    const reason = this.message.replace(/^Invalid request: /, "");
    return reason.charAt(0).toUpperCase() + reason.slice(1);
  }
}

let key = "";

/** @param {string} value the API key of all further requests */
export function useKey(value) {
  key = value;
}

/** @returns {Record<string, string>} */
export function keyHeader() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/**
 * A response of the server; a RequestError unless it is a good one.
 * @param {string} path
 * @param {unknown} body sent as JSON if it is given
 * @param {AbortSignal} [signal]
 */
export async function ask(path, body, signal) {
  /** @type {RequestInit} */
  const options = { headers: keyHeader(), signal, credentials: "same-origin" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers = { ...keyHeader(), "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  throw errorOf(response.status, await response.text().catch(() => ""), response.headers.get("Retry-After"));
}

/** @param {number} status @param {string} text @param {string | null} retryAfter */
export function errorOf(status, text, retryAfter) {
  let message = `The server answered ${status}.`;
  try {
    const { error } = JSON.parse(text);
    message = error.message ?? error;
  } catch {
    // not one of this server's errors: a proxy's, perhaps
  }
  return new RequestError(status, String(message), Math.min(MAX_WAIT, Number(retryAfter) || 0));
}

/** @param {string} path @param {unknown} [body] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function askJson(path, body, signal) {
  const response = await ask(path, body, signal);
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError(0, "The answer broke off.");
  }
}

/**
 * The sentences of a text, with their places. A line that may have placeholders or tags is not split.
 * @param {string} text
 * @param {string} language
 * @param {boolean} bySentence otherwise by line
 * @returns {{ text: string, start: number }[]}
 */
function splitSentences(text, language, bySentence) {
  const found = [];
  for (const line of text.matchAll(/[^\r\n]+/g)) {
    let start = line.index;
    for (const part of bySentence && !/[<{]/.test(line[0]) ? lineSentences(line[0], language) : [line[0]]) {
      const trimmed = part.trim();
      if (trimmed) found.push({ text: trimmed, start: start + part.indexOf(trimmed) });
      start += part.length;
    }
  }
  return found;
}

/** @param {string} line @param {string} language */
function lineSentences(line, language) {
  if (!("Segmenter" in Intl)) return [line];
  const known = Intl.Segmenter.supportedLocalesOf(/^[a-z]{2,3}(-\w+)*$/i.test(language) ? [language] : []);
  /** @type {string[]} */
  const found = [];
  for (const { segment } of new Intl.Segmenter(known, { granularity: "sentence" }).segment(line)) {
    const last = found.at(-1);
    if (last !== undefined && ABBREVIATION.test(last)) found[found.length - 1] = last + segment;
    else found.push(segment);
  }
  return found;
}

/**
 * A result with positions in UTF-16, as this language counts; the server counts code points.
 * @param {string} source
 * @param {{ text: string, alignment?: Alignment }} table
 * @returns {Result}
 */
export function readResult(source, table) {
  if (!table.alignment) return { text: table.text, alignment: null };
  const { links } = table.alignment;
  const sides = { source: countedSpans(source, table.alignment.source),
    target: countedSpans(table.text, table.alignment.target) };
  return { text: table.text, alignment: { ...sides, links } };
}

/** @param {string} text @param {Span[]} spans */
function countedSpans(text, spans) {
  const places = [0];
  for (const point of text) places.push(places[places.length - 1] + point.length);
  return spans.map(({ start, end }) => ({ start: places[start] ?? text.length, end: places[end] ?? text.length }));
}

/** Translates the text of the page as it changes. */
export class TranslationSession {
  /**
   * @param {{ batchLimit: number, languages: Language[], aligns: (direction: Direction) => boolean,
   *   glossary: (direction: Direction) => Record<string, string> | undefined }} server
   * @param {(sentences: Sentence[], direction: Direction, complete: boolean) => void} show
   */
  constructor(server, show) {
    this.server = server;
    this.show = show;
    /** @type {Map<string, Result>} */
    this.known = new Map();
    /** @type {AbortController | null} */
    this.running = null;
  }

  /** Cancel what is running. */
  cancel() {
    this.running?.abort();
    this.running = null;
  }

  /**
   * Translate a text; whatever was running is cancelled. Throws a RequestError.
   * @param {string} text
   * @param {Direction} chosen the source may be "auto"
   * @param {boolean} bySentence
   */
  async translate(text, chosen, bySentence) {
    this.cancel();
    const own = (this.running = new AbortController());
    try {
      const direction = chosen.source === "auto" ? await this.detect(text, chosen.target, own.signal) : chosen;
      if (own !== this.running) return;
      const sentences = splitSentences(text, direction.source, bySentence).map((one) =>
        ({ ...one, direction, known: this.known.get(this.keyOf(one.text, direction)) ?? null }));
      let missing = [...new Set(sentences.filter(({ known }) => !known).map((one) => one.text))];
      let size = Math.min(FIRST_BATCH, this.server.batchLimit);
      if (!missing.length) this.show(sentences, direction, true);
      while (missing.length) {
        const found = await this.ask(missing.slice(0, size), direction, own.signal);
        if (own !== this.running) return;
        for (const one of sentences) one.known ??= found.get(one.text) ?? null;
        missing = missing.slice(size);
        size = Math.min(4 * FIRST_BATCH, this.server.batchLimit);
        this.show(sentences, direction, !missing.length);
      }
    } catch (error) {
      if (own === this.running && !own.signal.aborted) throw error;
    }
  }

  /** @param {string[]} texts @param {Direction} direction @param {AbortSignal} signal */
  async ask(texts, direction, signal) {
    const answer = await askJson("api/v1/translate", { ...this.fields(direction), text: texts }, signal);
    const found = new Map(texts.map((text, number) => [text, readResult(text, answer.translations[number])]));
    for (const [text, result] of found) this.learn(text, direction, result);
    return found;
  }

  /** The fields of every request of a direction. @param {Direction} direction */
  fields(direction) {
    return { ...direction, align: this.server.aligns(direction), glossary: this.server.glossary(direction) };
  }

  /** Keep a result: a new one, or an alternative that the user chose. @param {string} text
   * @param {Direction} direction @param {Result} result */
  learn(text, direction, result) {
    if (this.known.size >= MAX_KNOWN) this.known.delete(/** @type {string} */ (this.known.keys().next().value));
    this.known.set(this.keyOf(text, direction), result);
  }

  /** @param {string} text @param {Direction} direction */
  keyOf(text, direction) {
    return JSON.stringify([direction.source, direction.target, this.server.glossary(direction), text]);
  }

  /**
   * The direction for a text of an unknown language. A longer text in the target language turns the direction around.
   * @param {string} text
   * @param {string} target
   * @param {AbortSignal} signal
   * @returns {Promise<Direction>}
   */
  async detect(text, target, signal) {
    /** @type {{ language: string, confidence: number }[]} */
    const ranked = await askJson("detect", { q: text }, signal);
    const targets = (/** @type {string} */ code) =>
      this.server.languages.find((one) => one.code === code)?.targets ?? [];
    const best = ranked[0];
    if (best?.language === target && best.confidence >= 90 && text.trim().length >= SWITCH_LENGTH) {
      const other = targets(target)[0];
      if (other) return { source: target, target: other };
    }
    const found = ranked.find(({ language }) => targets(language).includes(target));
    const any = this.server.languages.find(({ targets: some }) => some.includes(target));
    return { source: found?.language ?? any?.code ?? "", target };
  }
}
