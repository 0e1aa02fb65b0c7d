// The report's behaviour: sorting and filtering the runs, zooming figures, tips, the theme. No library, no network.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const $ = (id) => document.getElementById(id);

  // --- the table of runs ---
  const table = document.querySelector("#table table");
  if (table) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, i) => ({
      row,
      i,
      text: row.textContent.toLowerCase(),
      cells: [...row.cells].map((cell) => cell.dataset.v ?? cell.textContent),
    }));
    const heads = [...table.tHead.rows[0].cells];
    const picks = [...document.querySelectorAll("#filters select")];

    const show = () => {
      const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = picks.filter((s) => s.selectedIndex > 0).map((s) => [Number(s.dataset.column), s.value]);
      let left = 0;
      for (const { row, text, cells } of rows) {
        const keep = words.every((w) => text.includes(w)) && wanted.every(([c, v]) => cells[c] === v);
        row.hidden = !keep;
        left += keep;
      }
      $("count").textContent = `${left} of ${rows.length} runs`;
    };

    // numbers before words, empty cells last, whichever way
    const compare = (a, b, way) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const x = Number(a), y = Number(b);
      const xn = Number.isNaN(x), yn = Number.isNaN(y);
      if (xn !== yn) return xn - yn;
      return way * (xn ? a.localeCompare(b, "en") : x - y);
    };
    const sortBy = (column) => {
      const head = heads[column];
      const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      rows.sort((a, b) => compare(a.cells[column], b.cells[column], way) || a.i - b.i);
      const sorted = document.createDocumentFragment();
      rows.forEach(({ row }) => sorted.append(row));
      body.append(sorted);
    };
    heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => sortBy(column)));

    let waiting = 0;
    $("search").addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(show, 80);
    });
    picks.forEach((select) => select.addEventListener("change", show));
    $("filters").addEventListener("reset", () => setTimeout(show));
    $("filters").addEventListener("submit", (event) => event.preventDefault());
    show();
  }

  // --- figures: zoom and move by their view box ---
  for (const svg of document.querySelectorAll("figure svg")) {
    const whole = svg.getAttribute("viewBox").split(" ").map(Number);
    let [x, y, w, h] = whole;
    const apply = () => {
      w = Math.min(w, whole[2]);
      h = Math.min(h, whole[3]);
      x = Math.max(0, Math.min(x, whole[2] - w));
      y = Math.max(0, Math.min(y, whole[3] - h));
      svg.setAttribute("viewBox", `${x} ${y} ${w} ${h}`);
      svg.classList.toggle("zoomed", w < whole[2]);
    };
    const zoom = (factor, fx = 0.5, fy = 0.5) => {
      const scale = Math.max(whole[2] / 20, Math.min(whole[2], w * factor)) / w;
      x += w * (1 - scale) * fx;
      y += h * (1 - scale) * fy;
      w *= scale;
      h *= scale;
      apply();
    };
    const move = (dx, dy) => {
      x += dx * w;
      y += dy * h;
      apply();
    };
    const reset = () => {
      [x, y, w, h] = whole;
      apply();
    };
    const keys = {
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: reset,
      ArrowLeft: () => move(-0.1, 0), ArrowRight: () => move(0.1, 0), ArrowUp: () => move(0, -0.1),
      ArrowDown: () => move(0, 0.1),
    };
    svg.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      // the whole figure has nothing to move, so the arrows scroll the page
      if (!act || event.ctrlKey || event.metaKey || (event.key.startsWith("Arrow") && w >= whole[2])) return;
      event.preventDefault();
      act();
    });
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const box = svg.getBoundingClientRect();
      const at = [(event.clientX - box.x) / box.width, (event.clientY - box.y) / box.height];
      zoom(event.deltaY < 0 ? 0.8 : 1.25, ...at);
    }, { passive: false });
    let from = null;
    svg.addEventListener("pointerdown", (event) => {
      if (w >= whole[2]) return;
      from = [event.clientX, event.clientY];
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      const box = svg.getBoundingClientRect();
      move((from[0] - event.clientX) / box.width, (from[1] - event.clientY) / box.height);
      from = [event.clientX, event.clientY];
    });
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (from = null));
    const [out, back, into] = svg.closest("figure").querySelectorAll(".tools button");
    out.addEventListener("click", () => zoom(1 / 0.7));
    back.addEventListener("click", reset);
    into.addEventListener("click", () => zoom(0.7));
  }

  // --- tips: the mark under the pointer, or the nearest within a few pixels, as lines are thin ---
  const tip = $("tip");
  const ring = [[0, 0]];
  for (const radius of [3, 6]) {
    for (let k = 0; k < 8; k++) ring.push([radius * Math.cos((k * Math.PI) / 4), radius * Math.sin((k * Math.PI) / 4)]);
  }
  let hot = null;
  const at = (px, py) => {
    for (const [dx, dy] of ring) {
      const found = document.elementFromPoint(px + dx, py + dy)?.closest("[data-tip]");
      if (found) return found;
    }
    return null;
  };
  const point = (event) => {
    const inside = event.target instanceof Element && event.target.closest("figure svg");
    const found = inside && !event.buttons ? at(event.clientX, event.clientY) : null;
    if (found !== hot) {
      hot?.classList.remove("hot");
      found?.classList.add("hot");
      hot = found;
      tip.hidden = !found;
      if (found) tip.textContent = found.dataset.tip;
    }
    if (!found) return;
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = Math.min(event.clientX + 14, innerWidth - width - 6);
    const below = event.clientY + 18 + height < innerHeight;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - height - 10}px`;
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerup", point);
  document.addEventListener("scroll", () => {
    tip.hidden = true;
    hot?.classList.remove("hot");
    hot = null;
  }, { passive: true });

  // --- the theme ---
  const themes = ["system", "light", "dark"];
  let theme = 0;
  $("theme").addEventListener("click", () => {
    theme = (theme + 1) % themes.length;
    if (theme) root.dataset.theme = themes[theme];
    else delete root.dataset.theme;
    $("theme").textContent = `Theme: ${themes[theme]}`;
    $("theme").setAttribute("aria-label", `Colour theme: ${theme ? themes[theme] : "as the system"}`);
  });
})();
