"use strict";
// Draws layers and ops from the data in this file. Text is inserted as text, never as markup.
(() => {
  const source = document.getElementById("nodes");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const STEPS = [0, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85];

  const make = (tag, text, classes) => {
    const one = document.createElement(tag);
    if (text !== undefined && text !== null) one.textContent = text;
    if (classes) one.className = classes;
    return one;
  };
  const cell = (text, classes) => make("td", text, classes);
  const head = (text, scope, classes) => {
    const one = make("th", text, classes);
    one.scope = scope;
    return one;
  };
  const number = (value) => (value === null || value === undefined ? "" : typeof value === "number" ? String(+value.toPrecision(3)) : String(value));
  const percent = (share) => {
    const value = Number(share === "inf" ? Infinity : share);
    if (value === 0) return "0";
    if (value < 0.01) return "<1";
    return value < 10 ? String(Math.round(value * 100)) : ">999";
  };
  const shade = (share) => (share === 0 ? "h0" : share > 1 ? "other" : "h" + STEPS.filter((step) => share > step).length);
  const layerName = (layer) => (layer === null ? "outside" : String(layer));

  // op -> layer -> {share, wrong}, in the order of the graph
  const squares = (model) => {
    const wrong = new Set(model.wrong), ops = new Map(), layers = new Set();
    model.step.forEach((_, i) => {
      const op = model.op[i], layer = model.layer ? model.layer[i] : null;
      layers.add(layer);
      if (!ops.has(op)) ops.set(op, new Map());
      const row = ops.get(op), share = Number(model.share[i] === "inf" ? Infinity : model.share[i]);
      const before = row.get(layer) || { share: 0, wrong: false, count: 0 };
      row.set(layer, { share: Math.max(before.share, share), wrong: before.wrong || wrong.has(i), count: before.count + 1 });
    });
    const inside = [...layers].filter((layer) => layer !== null).sort((a, b) => a - b);
    return { ops, layers: layers.has(null) ? [...inside, null] : inside };
  };

  const heatMap = (model, open) => {
    const { ops, layers } = squares(model);
    const table = make("table", null, "heat"), top = make("tr"), body = make("tbody");
    table.append(make("caption", "Percent of the limit, worst of all nodes and steps"));
    top.append(head("layer", "col"));
    const buttons = new Map();
    for (const layer of layers) {
      const th = head(null, "col"), button = make("button", layerName(layer));
      button.type = "button";
      button.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-label", layer === null ? "Nodes outside of all layers" : "Nodes of layer " + layer);
      button.addEventListener("click", () => open(layer, buttons));
      buttons.set(layer, button);
      th.append(button);
      top.append(th);
    }
    for (const [op, row] of ops) {
      const tr = make("tr");
      tr.append(head(data.texts[op], "row"));
      for (const layer of layers) {
        const found = row.get(layer);
        if (!found) { tr.append(cell("", "cell nothing")); continue; }
        const td = cell(found.wrong ? "✗" : percent(found.share), "cell " + (found.wrong ? "wrong" : shade(found.share)));
        td.title = found.count + " nodes, " + (found.wrong ? "wrong" : number(found.share * 100) + " % of the limit");
        td.addEventListener("click", () => open(layer, buttons));
        tr.append(td);
      }
      body.append(tr);
    }
    const thead = make("thead");
    thead.append(top);
    table.append(thead, body);
    return table;
  };

  const gain = (model, i) => {
    if (!model.err_in || !model.err_out) return "";
    const before = model.err_in[i], after = model.err_out[i];
    return typeof before === "number" && typeof after === "number" && before > 0 ? number(after / before) : "";
  };

  const nodeTable = (model, layer) => {
    const table = make("table", null, "nodes"), thead = make("thead"), body = make("tbody"), top = make("tr");
    const own = Boolean(model.err_out), wrong = new Set(model.wrong);
    table.append(make("caption", (layer === null ? "Outside of all layers" : "Layer " + layer) + ", in execution order"));
    const columns = [["step", "n"], ["node"], ["op"], ["of its limit", "n"], ["error", "n"]];
    if (own) columns.push(["error in", "n"], ["error out", "n"], ["gain", "n"]);
    columns.push(["worst element"], ["limit: why so much", "why"]);
    for (const [name, classes] of columns) top.append(head(name, "col", classes));
    thead.append(top);
    model.step.forEach((step, i) => {
      if ((model.layer ? model.layer[i] : null) !== layer) return;
      const tr = make("tr", null, wrong.has(i) ? "bad" : ""), name = data.texts[model.name[i]];
      const share = model.share[i], told = (model.found || {})[step + "/" + (layer === null ? "" : layer) + "/" + name];
      tr.append(cell(step, "n"), head((wrong.has(i) ? "✗ " : "") + name, "row"), cell(data.texts[model.op[i]]));
      tr.append(cell(typeof share === "number" && share < 100 ? number(share * 100) + " %" : number(share) + " times", "n"), cell(number(model.error[i]), "n"));
      if (own) tr.append(cell(number(model.err_in[i]), "n"), cell(number(model.err_out[i]), "n"), cell(gain(model, i), "n"));
      let worst = model.worst[i] ? "[" + model.worst[i].split("/").join(", ") + "]" : "every one exact";
      if (told) worst += ": " + number(told[0]) + ", expected " + number(told[1]) + " (allowed " + number(told[2]) + ")";
      tr.append(cell(worst), cell(data.texts[model.reason[i]], "why"));
      body.append(tr);
    });
    table.append(thead, body);
    return table;
  };

  const scrolled = (inner, label) => {
    const box = make("div", null, "scroll");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", label);
    box.append(inner);
    return box;
  };

  const draw = (details) => {
    const place = details.querySelector(".drawn");
    if (place.firstChild) return;
    const model = data.models[Number(details.dataset.model)], below = make("div");
    below.setAttribute("aria-live", "polite");
    let shown;
    const open = (layer, buttons) => {
      const again = shown === layer;
      for (const [each, button] of buttons) button.setAttribute("aria-expanded", String(each === layer && !again));
      below.replaceChildren(...(again ? [] : [scrolled(nodeTable(model, layer), "Nodes of one layer")]));
      shown = again ? undefined : layer;
    };
    place.append(scrolled(heatMap(model, open), "Layers and ops of " + model.case), below);
  };

  const models = [...document.querySelectorAll("details[data-model]")];
  for (const details of models) details.addEventListener("toggle", () => { if (details.open) draw(details); });
  const first = models.find((details) => data.models[Number(details.dataset.model)].wrong.length) || models[0];
  if (first) first.open = true;
})();
