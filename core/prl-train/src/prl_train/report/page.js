"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.metrics;
  const $ = (id) => document.getElementById(id);
  const el = (tag, cls, text) => {
    const node = document.createElement(tag);
    if (cls) node.className = cls;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const NS = "http://www.w3.org/2000/svg";
  const svg = (tag, attrs, parent) => {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
    if (parent) parent.appendChild(node);
    return node;
  };
  const show = (x) => {
    if (x === null || x === undefined) return "–";
    const size = Math.abs(x);
    if (x !== 0 && (size < 1e-3 || size >= 1e5)) return x.toExponential(1);
    return Number.isInteger(x) ? String(x) : x.toFixed(size < 10 ? 3 : 1);
  };

  const tick = (x) => (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5) ? x.toExponential(1).replace(".0e", "e") : String(parseFloat(x.toPrecision(4))));

  // ---- figures
  const s = data.summary;
  const rose = s.reward_end !== null && s.reward_end > s.reward_start;
  const figures = [
    [s.reward_start === null ? "–" : `${s.reward_start.toFixed(2)} → ${s.reward_end.toFixed(2)}`, "reward, first and last 5 steps", rose ? "good" : ""],
    [s.samples_per_rollout === null ? "–" : s.samples_per_rollout.toFixed(2), "samples per rollout", s.samples_per_rollout === 1 ? "good" : ""],
    [String(s.breaks), "breaks of the token sequence", s.breaks === 0 ? "good" : "bad"],
    [show(s.max_logprob_diff), "largest |engine − trainer| log-prob", s.max_logprob_diff !== null && s.max_logprob_diff < 1e-3 ? "good" : ""],
    [String(s.steps), s.errors ? `steps, ${s.errors} failed rollouts` : "steps, no failed rollout", s.errors ? "bad" : ""],
  ];
  for (const [value, label, mood] of figures) {
    const card = el("div", `figure ${mood}`);
    card.append(el("b", "", value), el("span", "", label));
    $("figures").append(card);
  }
  $("name").textContent = data.name;
  document.title = `${data.name} · prl run report`;
  $("about").textContent = data.about.join(" · ");
  $("config").querySelector("pre").textContent = data.config;

  // ---- charts
  const W = 520, H = 210, L = 56, R = 10, T = 10, B = 24;
  const ticks = (low, high) => {
    const raw = (high - low) / 4, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw);
    const out = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
    return out;
  };
  const range = (series, spec) => {
    const all = series.flatMap((one) => one.points.map((p) => p[1]));
    let low = Math.min(...all), high = Math.max(...all);
    if (spec.zero) low = Math.min(low, 0);
    if (spec.top !== undefined) high = Math.max(high, spec.top);
    if (high - low < 1e-12 * Math.max(1, Math.abs(high))) high = low + (high === 0 ? 1 : Math.abs(high));
    const pad = (high - low) * 0.06;
    return [spec.zero && low === 0 ? 0 : low - pad, high + pad];
  };
  const smooth = (points) => {
    let state = null;
    return points.map(([x, y]) => [x, (state = state === null ? y : 0.75 * state + 0.25 * y)]);
  };
  const chart = (title, spec) => {
    const series = spec.series.map((one) => ({
      ...one,
      points: rows.filter((row) => typeof row[one.key] === "number").map((row) => [row.step, row[one.key]]),
    })).filter((one) => one.points.length);
    const card = el("div", "chart");
    const value = el("span", "value");
    card.append(el("h3", "", title), value);
    $("charts").append(card);
    if (!series.length) { card.append(el("p", "legend", "not measured")); return; }
    const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
    card.append(root);
    const [low, high] = range(series, spec);
    const steps = rows.map((row) => row.step), first = Math.min(...steps), last = Math.max(...steps, first + 1);
    const bars = spec.bars, half = bars ? (W - L - R) / (last - first + 1) / 2 : 0;
    const x = (v) => L + half + ((v - first) / (last - first)) * (W - L - R - 2 * half);
    const y = (v) => T + (1 - (v - low) / (high - low)) * (H - T - B);
    for (const v of ticks(low, high)) {
      svg("line", { x1: L, x2: W - R, y1: y(v), y2: y(v), class: "grid" }, root);
      svg("text", { x: L - 8, y: y(v) + 4, "text-anchor": "end", class: "axis" }, root).textContent = tick(v);
    }
    for (const v of ticks(first, last).filter(Number.isInteger))
      svg("text", { x: x(v), y: H - 6, "text-anchor": "middle", class: "axis" }, root).textContent = v;
    const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    const stack = new Map();
    for (const one of series) {
      if (bars) {
        for (const [a, b] of one.points) {
          const base = stack.get(a) || 0;
          if (b > 0) svg("rect", { x: x(a) - half * 0.8, width: half * 1.6, y: y(base + b), height: y(base) - y(base + b), fill: one.color }, root);
          stack.set(a, base + b);
        }
      } else {
        svg("path", { d: path(one.points), fill: "none", stroke: one.color, "stroke-width": spec.smooth ? 1 : 1.8, opacity: spec.smooth ? 0.4 : 1, "stroke-linejoin": "round" }, root);
        if (spec.smooth) svg("path", { d: path(smooth(one.points)), fill: "none", stroke: one.color, "stroke-width": 2.4, "stroke-linejoin": "round" }, root);
      }
    }
    if (bars && series.every((one) => one.points.every((p) => p[1] === 0)))
      svg("text", { x: (L + W - R) / 2, y: (T + H - B) / 2, "text-anchor": "middle", class: "axis" }, root).textContent = spec.none;
    const label = (step) => `step ${step}  ` + series.map((one) => {
      const point = one.points.find((p) => p[0] === step);
      return `${series.length > 1 ? one.name + " " : ""}${point ? show(point[1]) : "–"}`;
    }).join("  ");
    value.textContent = label(steps[steps.length - 1]);
    if (series.length > 1 || bars) {
      const key = el("div", "key");
      for (const one of series) {
        const item = el("span", "", one.name), dot = el("i");
        dot.style.background = one.color;
        item.prepend(dot);
        key.append(item);
      }
      card.append(key);
    }
    const cursor = svg("line", { y1: T, y2: H - B, class: "cursor", visibility: "hidden" }, root);
    root.addEventListener("pointermove", (event) => {
      const box = root.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * W;
      const step = steps.reduce((best, v) => (Math.abs(x(v) - at) < Math.abs(x(best) - at) ? v : best), steps[0]);
      cursor.setAttribute("x1", x(step)); cursor.setAttribute("x2", x(step)); cursor.setAttribute("visibility", "visible");
      value.textContent = label(step);
    });
    root.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); value.textContent = label(steps[steps.length - 1]); });
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [blue, green, amber, red, violet] = ["--blue", "--green", "--amber", "--red", "--violet"].map(css);
  const palette = [red, amber, violet, blue, green, "#0e8a9c", "#9a5b2e", "#c0409a"];
  const causes = [...new Set(rows.flatMap((row) => Object.keys(row).filter((key) => key.startsWith("breaks/"))))].sort();
  const broken = causes.length
    ? causes.map((key, i) => ({ key, name: key.slice(7).replaceAll("_", " "), color: palette[i % palette.length] }))
    : [{ key: "breaks", name: "breaks", color: red }];
  if (rows.length) {
    chart("Reward", { series: [{ key: "reward", name: "mean", color: green }], smooth: true, zero: true, top: 1 });
    chart("Policy loss", { series: [{ key: "loss", name: "loss", color: blue }], smooth: true });
    chart("Mismatch KL, engine against trainer", { series: [{ key: "mismatch_kl", name: "KL", color: violet }], zero: true });
    chart("Breaks by cause", { series: broken, bars: true, zero: true, top: 1, none: "none: every turn extended the tokens before it" });
    chart("Largest |engine − trainer| log-probability", { series: [{ key: "max_logprob_diff", name: "max", color: amber }], zero: true });
    chart("Entropy of sampled tokens (nats)", { series: [{ key: "entropy", name: "entropy", color: "#0e8a9c" }], zero: true });
  } else {
    $("charts").append(el("p", "legend", "No step was reported yet."));
  }

  // ---- rollouts
  const tip = $("tip");
  const visible = (text) => {
    const parts = [];
    for (const char of text) {
      if (char === "\n") parts.push(el("span", "ws", "↵"));
      else if (char === " ") parts.push(el("span", "ws", "·"));
      else if (char === "\t") parts.push(el("span", "ws", "→"));
      else parts.push(document.createTextNode(char));
    }
    return parts.length ? parts : [el("span", "ws", "∅")];
  };
  const token = (sample, i) => {
    const node = el("span", sample.mask[i] ? "t s" : "t");
    node.append(...visible(sample.text[i]));
    const lp = sample.logprobs[i];
    if (lp !== null) {
      const surprise = Math.min(1, -lp / 3);
      node.style.background = `hsl(${152 - 110 * surprise} 58% ${88 - 12 * surprise}%)`;
    }
    const lines = [`id ${sample.ids[i]}   position ${i}`, lp === null ? "not sampled: no loss" : `log-prob ${lp.toFixed(4)}   p ${Math.exp(lp).toFixed(3)}`];
    node.addEventListener("pointermove", (event) => {
      tip.hidden = false;
      tip.textContent = lines.join("\n");
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY + 16}px`;
    });
    node.addEventListener("pointerleave", () => { tip.hidden = true; });
    return node;
  };
  const view = (sample) => {
    const box = el("div");
    const blocks = sample.blocks || [[0, sample.ids.length, "unknown"]];
    for (const [start, end, role] of blocks) {
      const block = el("div", `block ${role}`), line = el("div", "tokens");
      for (let i = start; i < end; i++) line.append(token(sample, i));
      block.append(el("em", "", role), line);
      box.append(block);
    }
    return box;
  };
  for (const rollout of data.rollouts) {
    const card = el("div", "rollout"), head = el("p");
    const gain = rollout.advantage;
    head.append(
      el("b", "", `step ${rollout.step}`),
      el("span", "", rollout.trajectory_id),
      el("span", "badge", `reward ${show(rollout.reward)}`),
      el("span", `badge ${gain > 0 ? "up" : gain < 0 ? "down" : ""}`, `advantage ${gain > 0 ? "+" : ""}${gain.toFixed(2)}`),
      el("span", "", `${rollout.error ? "error: " + rollout.error : rollout.stop_reason}`),
      el("span", "", `weights ${[...new Set(rollout.versions)].map((v) => "v" + v).join(", ")}`),
      el("span", "", `${rollout.samples.length} sample${rollout.samples.length === 1 ? "" : "s"}`),
    );
    for (const found of rollout.breaks) head.append(el("span", "badge down", `break at turn ${found.turn}: ${found.cause}`));
    card.append(head);
    rollout.samples.forEach((sample, i) => { if (i) card.append(el("hr")); card.append(view(sample)); });
    $("views").append(card);
  }
  if (!data.rollouts.length) $("views").append(el("p", "legend", "No rollout was logged."));
})();
