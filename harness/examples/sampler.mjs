// A sampler in Lockstep's protocol, without libraries: temperature, cuts, penalties, selection.
//     lockstep smoke -- node sampler.mjs
//     lockstep check model.gguf --suite samplers --engine "node sampler.mjs"

// --- samplers: each takes a list of [id, logit], and returns the candidates that remain
const by_logit = (list) => [...list].sort((a, b) => b[1] - a[1]);

function softmax(list) {
  const largest = list.reduce((most, [, logit]) => Math.max(most, logit), -Infinity);
  const weights = list.map(([, logit]) => Math.exp(logit - largest));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

function largest_of(list) { // returns its index, the first for ties
  return list.reduce((best, [, logit], i) => (logit > list[best][1] ? i : best), 0);
}

function reach(p, goal) { // returns the first index at which the sum of p reaches the goal
  let sum = 0;
  const at = p.findIndex((share) => (sum += share) >= goal);
  return at < 0 ? p.length - 1 : at;
}

const samplers = {
  greedy: (list) => list,
  dist: (list) => list,
  top_k: (list, { k }) => (k > 0 ? by_logit(list).slice(0, k) : list),
  top_p(list, { p, min_keep }) {
    if (p >= 1) return list;
    const sorted = by_logit(list);
    return sorted.slice(0, Math.max(reach(softmax(sorted), p) + 1, min_keep));
  },
  min_p(list, { p, min_keep }) {
    if (p <= 0) return list;
    const sorted = by_logit(list), least = sorted[0][1] + Math.log(p);
    return sorted.filter(([, logit], i) => logit >= least || i < min_keep);
  },
  temp(list, { t }) {
    const best = largest_of(list);
    return list.map(([id, logit], i) => [id, t > 0 ? logit / t : i === best ? logit : -Infinity]);
  },
  penalties(list, { penalty_last_n, penalty_repeat, penalty_freq, penalty_present }, accepted) {
    const counts = new Map();
    const last = penalty_last_n > 0 ? accepted.slice(-penalty_last_n) : [];
    for (const id of last) counts.set(id, (counts.get(id) ?? 0) + 1);
    return list.map(([id, logit]) => {
      const n = counts.get(id);
      if (!n) return [id, logit];
      const moved = logit <= 0 ? logit * penalty_repeat : logit / penalty_repeat;
      return [id, moved - n * penalty_freq - penalty_present];
    });
  },
};

function choose({ sampler }, list, draw) {
  if (sampler === "greedy") return list[largest_of(list)][0];
  return sampler === "dist" ? list[reach(softmax(list), draw)][0] : -1;
}

function sample({ chain, accepted }, { logits, draws }) {
  const unknown = chain.find(({ sampler }) => !(sampler in samplers));
  if (unknown) return { unsupported: `no sampler ${unknown.sampler}` };
  const sizes = [], selected = [], lists = [], told = [];
  const width = logits.length / accepted.length;
  accepted.forEach((tokens, row) => {
    told.push(...tokens);
    const own = logits.subarray(row * width, (row + 1) * width);
    let list = Array.from(own, (logit, id) => [id, logit]);
    chain.forEach((stage, i) => {
      list = samplers[stage.sampler](list, stage, told);
      sizes.push(list.length);
      selected.push(choose(stage, list, draws[row * chain.length + i]));
      lists.push(list);
    });
  });
  const shape = [accepted.length, chain.length], all = lists.flat();
  return {
    answer: {},
    arrays: [
      ["sizes", "i32", shape, Int32Array.from(sizes)],
      ["selected", "i32", shape, Int32Array.from(selected)],
      ["ids", "i32", [all.length], Int32Array.from(all, ([id]) => id)],
      ["logits", "f32", [all.length], Float32Array.from(all, ([, logit]) => logit)],
      ["p", "f32", [all.length], Float32Array.from(lists.flatMap(softmax))],
    ],
  };
}

// --- the protocol: a line of JSON, and then the bytes of its arrays
const input = process.stdin[Symbol.asyncIterator]();
let held = Buffer.alloc(0);

async function take(size) { // returns size() bytes, or undefined at the end; size() is -1 if unknown
  while (size() < 0 || held.length < size()) {
    const { value, done } = await input.next();
    if (done) return undefined;
    held = Buffer.concat([held, value]);
  }
  const found = held.subarray(0, size());
  held = held.subarray(found.length);
  return found;
}

const KINDS = { f32: [4, Float32Array], f64: [8, Float64Array] };
const about = { protocol: 1, engine: "sampler in JavaScript", version: "1", can: ["sample"] };
let line;
while ((line = await take(() => held.indexOf(10) + 1 || -1))) {
  const question = JSON.parse(line), given = {};
  for (const [name, kind, shape] of question.arrays) {
    const [bytes, Numbers] = KINDS[kind], size = bytes * shape.reduce((a, b) => a * b, 1);
    const copy = Uint8Array.from(await take(() => size)); // aligned
    given[name] = new Numbers(copy.buffer);
  }
  const found = question.ask === "start" ? { answer: about } : sample(question, given);
  const { arrays = [], ...head } = found;
  head.id = question.id;
  head.arrays = arrays.map(([name, kind, shape]) => [name, kind, shape]);
  process.stdout.write(JSON.stringify(head) + "\n");
  for (const [, , , values] of arrays) process.stdout.write(new Uint8Array(values.buffer));
}
