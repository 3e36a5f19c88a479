// The frames of PROTOCOL.md, for all JavaScript engines in this folder.
//
// Answers use a descriptor of their own, because the engines' libraries print to stdout.
import { writeSync } from "node:fs";

const NEWLINE = 10;
const OUT = Number(process.env.LOCKSTEP_ANSWERS);
const input = process.stdin[Symbol.asyncIterator]();
let ahead = Buffer.alloc(0);

// The engine is imported from the environment that `lockstep engine add` made.
export const engine = async () => (await import(`file://${process.argv[2]}`)).engine;

export class Unsupported extends Error {}

// start(model, settings) returns [a description of the engine, {ask: function}]. Each function takes
// the question and show(name, shape, Float32Array), which sends an array, and returns the answer.
export async function serve(start) {
  let answers = {};
  for (let question; (question = await next()); ) {
    const said = { id: question.id };
    const arrays = [];
    const show = (name, shape, values) => arrays.push([name, shape, values]);
    try {
      if (question.ask === "start") {
        const [introduction, functions] = await start(question.model, question.settings);
        answers = functions;
        said.answer = { protocol: 1, can: Object.keys(answers), ...introduction };
      } else said.answer = await answers[question.ask](question, show);
      said.arrays = arrays.map(([name, shape]) => [name, "f32", shape]);
    } catch (error) {
      console.error(error);
      if (error instanceof Unsupported) said.unsupported = error.message;
      else said.failed = `${error}`;
    }
    write(Buffer.from(`${text(said)}\n`));
    if (said.answer) for (const [, , values] of arrays) write(new Uint8Array(values.buffer));
  }
  process.exit(0);
}

async function next() {
  for (;;) {
    const end = ahead.indexOf(NEWLINE);
    if (end >= 0) {
      const question = JSON.parse(ahead.subarray(0, end).toString());
      ahead = ahead.subarray(end + 1);
      while (ahead.length < question.bytes) if (!(await more())) return null;
      ahead = ahead.subarray(question.bytes); // no question here uses arrays
      return question;
    }
    if (!(await more())) return null;
  }
}

async function more() {
  const piece = await input.next();
  if (piece.done) return false;
  ahead = Buffer.concat([ahead, piece.value]);
  return true;
}

function write(bytes) {
  let rest = bytes;
  while (rest.length) rest = rest.subarray(writeSync(OUT, rest));
}

// JSON allows integers of any size, but JSON.stringify does not write BigInt.
function text(value) {
  const mark = crypto.randomUUID();
  const plain = (_, v) => (typeof v === "bigint" ? `${mark}${v}` : v);
  return JSON.stringify(value, plain).replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

// Return a metadata value as PROTOCOL.md writes it. JSON has no NaN and no infinities.
export function json(value) {
  if (Array.isArray(value)) return value.map(json);
  if (typeof value !== "number" || Number.isFinite(value)) return value;
  return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

export const fromBase64 = (texts) => texts.map((each) => Buffer.from(each, "base64").toString());
export const toBase64 = (texts) => texts.map((each) => Buffer.from(each).toString("base64"));
