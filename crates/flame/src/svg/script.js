(() => {
  "use strict";
  const script = document.currentScript;
  const svg = script && script.closest ? script.closest("svg") : document.documentElement;
  const setting = (name) => Number(svg.dataset[name]);
  const [head, row, margin, character, line] = ["head", "row", "margin", "character", "line"].map(setting);
  const group = svg.querySelector("#boxes");
  const status = svg.querySelector("#status");
  const whole = 1e-9;

  const boxes = Array.from(group.children, (g, id) => ({
    g, id,
    x: Number(g.dataset.x), w: Number(g.dataset.w), depth: Number(g.dataset.d),
    rect: g.querySelector("rect"), text: g.querySelector("text"),
    details: g.querySelector("title").textContent,
    name: g.querySelector("title").textContent.split("\n")[0],
    parent: null, children: [],
  }));
  if (boxes.length === 0) return;
  // Boxes come parents first, so the last one a level up is the parent.
  const open = [];
  for (const box of boxes) {
    box.parent = open[box.depth - 1] || null;
    if (box.parent) box.parent.children.push(box);
    open[box.depth] = box;
  }
  const root = boxes[0];
  let zoomed = root;
  let width = svg.viewBox.baseVal.width;
  const height = svg.viewBox.baseVal.height;
  const title = svg.querySelector(":scope > .title");
  const heading = title.textContent;
  // What is said above the boxes is set for a width already: rows of one line each, and the legend.
  const lines = Array.from(svg.querySelectorAll(":scope > .line"), (g) => ({
    g, text: Array.from(g.children, (text) => text.textContent.trim()).join(" "),
  }));
  const keys = Array.from(svg.querySelectorAll(":scope > .key"), (g) => ({
    g, width: 33 + g.querySelector("text").textContent.length * character,
  }));
  // The search box and its button.
  const tooling = 320;
  const narrowest = tooling + 2 * margin;
  let pattern = null;

  const isAbove = (box) =>
    box.depth < zoomed.depth && box.x <= zoomed.x + whole && box.x + box.w >= zoomed.x + zoomed.w - whole;
  const isInside = (box) =>
    box.depth >= zoomed.depth && box.x >= zoomed.x - whole && box.x + box.w <= zoomed.x + zoomed.w + whole;

  function draw() {
    const inner = width - 2 * margin;
    for (const box of boxes) {
      const above = isAbove(box);
      const shown = above || isInside(box);
      box.g.classList.toggle("hidden", !shown);
      box.g.classList.toggle("above", above);
      if (!shown) continue;
      const x = margin + (above ? 0 : ((box.x - zoomed.x) / zoomed.w) * inner);
      const w = above ? inner : (box.w / zoomed.w) * inner;
      box.rect.setAttribute("x", x.toFixed(2));
      box.rect.setAttribute("width", Math.max(w, 0.1).toFixed(2));
      box.text.setAttribute("x", (x + 3).toFixed(2));
      box.text.textContent = cut(box.name, Math.floor((w - 6) / character));
    }
    reset.disabled = zoomed === root && !pattern;
  }

  const cut = (text, fits) => (text.length <= fits ? text : fits < 3 ? "" : text.slice(0, fits - 1) + "…");

  // In rows of at most so many characters, if words allow it.
  function wrap(text, fits) {
    const rows = [""];
    for (const word of text.split(" ")) {
      const last = rows[rows.length - 1];
      if (!last || last.length + 1 + word.length <= fits) rows[rows.length - 1] = last ? `${last} ${word}` : word;
      else rows.push(`  ${word}`);
    }
    return rows;
  }

  // Sets what stands above the boxes, and moves those below it.
  function arrange() {
    title.textContent = heading;
    const letter = title.getComputedTextLength() / heading.length;
    title.textContent = cut(heading, Math.floor((width - 2 * margin) / letter));
    const beside = title.getComputedTextLength() + tooling + 3 * margin <= width;
    tools.setAttribute("x", beside ? width - margin - tooling : margin);
    tools.setAttribute("y", beside ? 6 : 32);
    let y = beside ? 40 : 74;
    for (const { g, text } of lines) {
      g.replaceChildren(...wrap(text, Math.floor((width - 2 * margin) / character)).map((row) => {
        const note = document.createElementNS(svg.namespaceURI, "text");
        note.setAttribute("class", "note");
        note.setAttribute("x", margin);
        note.setAttribute("y", y);
        note.textContent = row;
        y += line;
        return note;
      }));
    }
    let x = margin;
    for (const key of keys) {
      if (x > margin && x + key.width > width - margin) {
        x = margin;
        y += line;
      }
      key.g.setAttribute("transform", `translate(${x} ${y})`);
      x += key.width;
    }
    // As below: a row for what the pointer is on, and a gap.
    const moved = y + (keys.length ? line : 0) + 18 - head;
    group.setAttribute("transform", `translate(0 ${moved})`);
    status.setAttribute("y", head + moved - 8);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height + moved);
    svg.setAttribute("viewBox", `0 0 ${width} ${height + moved}`);
  }

  // The window's width without a scroll bar.
  function visible() {
    const viewport = window.visualViewport;
    return viewport ? Math.floor(viewport.width * viewport.scale) : window.innerWidth;
  }

  function resize() {
    // Standing alone, the picture is as wide as the window; within a page it is scaled.
    if (svg !== document.documentElement || !window.innerWidth) return;
    const fit = (wide) => {
      width = Math.max(wide, narrowest);
      arrange();
    };
    fit(window.innerWidth);
    // A scroll bar takes its part of the window.
    if (window.innerHeight < svg.viewBox.baseVal.height) fit(visible());
    draw();
    say(zoomed === root ? null : zoomed);
  }

  function remember() {
    const parts = [];
    if (zoomed !== root) parts.push(`zoom=${zoomed.id}`);
    if (pattern) parts.push(`search=${encodeURIComponent(input.value)}`);
    try {
      history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
    } catch { /* a viewer without a history */ }
  }

  function zoom(box) {
    zoomed = box;
    draw();
    say(box);
    remember();
  }

  // On one line; the box's own title has all of it.
  function say(box) {
    const text = box ? box.details.split("\n").join(" · ") : found();
    status.textContent = cut(text, Math.floor((width - 2 * margin) / character));
  }

  function search(text) {
    pattern = null;
    input.setCustomValidity("");
    if (text) {
      try {
        pattern = new RegExp(text, "i");
      } catch (error) {
        input.setCustomValidity(error.message);
      }
    }
    for (const box of boxes) box.g.classList.toggle("hit", Boolean(pattern) && pattern.test(box.name));
    group.classList.toggle("searching", Boolean(pattern));
    reset.disabled = zoomed === root && !pattern;
    status.textContent = input.validationMessage || found();
    remember();
  }

  // The share of the picture in matching boxes; a box within a matching one counts once.
  function found() {
    if (!pattern) return "";
    let share = 0, hits = 0, end = -1;
    const all = boxes.filter((box) => box.g.classList.contains("hit"));
    for (const box of all.sort((a, b) => a.x - b.x || a.depth - b.depth)) {
      hits += 1;
      const from = Math.max(box.x, end);
      if (box.x + box.w > from) share += box.x + box.w - from;
      end = Math.max(end, box.x + box.w);
    }
    return `${hits} boxes match: ${(share * 100).toFixed(1)} % of the picture`;
  }

  const html = (name) => document.createElementNS("http://www.w3.org/1999/xhtml", name);
  const tools = document.createElementNS("http://www.w3.org/2000/svg", "foreignObject");
  const input = html("input");
  const reset = html("button");
  tools.setAttribute("x", width - margin - tooling);
  tools.setAttribute("y", 6);
  tools.setAttribute("width", tooling);
  tools.setAttribute("height", 28);
  input.type = "search";
  input.placeholder = "Search: a regular expression";
  input.setAttribute("aria-label", "Search function names");
  input.style.width = "250px";
  reset.textContent = "Reset";
  reset.style.width = "64px";
  reset.style.marginLeft = "4px";
  tools.append(input, reset);
  svg.querySelector("#tools").append(tools);

  function resetAll() {
    input.value = "";
    search("");
    zoom(root);
    status.textContent = "";
  }

  input.addEventListener("input", () => search(input.value));
  reset.addEventListener("click", resetAll);
  const boxOf = (target) => {
    const g = target.closest && target.closest("#boxes > g");
    return g ? boxes.find((box) => box.g === g) : null;
  };
  group.addEventListener("click", (event) => {
    const box = boxOf(event.target);
    if (box) zoom(box);
  });
  group.addEventListener("mouseover", (event) => say(boxOf(event.target)));
  group.addEventListener("mouseleave", () => say(zoomed === root ? null : zoomed));

  // One box at a time can be reached by Tab; arrow keys move on from there.
  let current = root;
  function focus(box) {
    if (!box) return;
    current.g.setAttribute("tabindex", -1);
    current = box;
    box.g.setAttribute("tabindex", 0);
    box.g.focus();
    say(box);
  }
  const shown = (box) => box && !box.g.classList.contains("hidden");
  function beside(step) {
    const all = current.parent ? current.parent.children.filter(shown) : [current];
    return all[all.indexOf(current) + step];
  }
  const widest = () =>
    current.children.filter(shown).reduce((a, b) => (a && a.w >= b.w ? a : b), null);
  const moves = {
    ArrowUp: () => focus(shown(current.parent) ? current.parent : null),
    ArrowDown: () => focus(widest()),
    ArrowLeft: () => focus(beside(-1)),
    ArrowRight: () => focus(beside(1)),
    Enter: () => zoom(current),
    " ": () => zoom(current),
  };
  root.g.setAttribute("tabindex", 0);
  for (const box of boxes) box.g.setAttribute("role", "button");
  group.addEventListener("focusin", (event) => {
    const box = boxOf(event.target);
    if (box) current = box;
  });
  group.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      resetAll();
    } else if ((event.key === "/" && event.target !== input) || (event.ctrlKey && event.key === "f")) {
      event.preventDefault();
      input.focus();
      input.select();
    }
  });

  group.classList.add("live");
  const wanted = new URLSearchParams(location.hash.slice(1));
  resize();
  draw();
  input.value = wanted.get("search") || "";
  const at = boxes[Number(wanted.get("zoom") || 0)];
  if (input.value) search(input.value);
  if (at && at !== root) zoom(at);
  window.addEventListener("resize", resize);
})();
