"use strict";
// What a page does beside showing: words under the pointer, keys, and following the root. Without it, all is there.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
    const top = y + 14 + box.height > innerHeight ? y - 14 - box.height : y + 14;
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.max(top, 4)}px`;
  };
  document.addEventListener("pointermove", (event) => {
    const text = event.target.dataset ? event.target.dataset.tip : undefined;
    tip.hidden = !text;
    if (text) {
      if (tip.textContent !== text) tip.textContent = text;
      place(event.clientX, event.clientY);
    }
  });
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.dataset || !event.target.dataset.tip) tip.hidden = true;
  });

  document.addEventListener("change", (event) => {
    if ("submits" in event.target.dataset) {
      for (const field of event.target.form.querySelectorAll("input[name=k]")) field.disabled = true;
      event.target.form.submit();
    }
  });

  const current = document.querySelector('.tabs [aria-current="page"]');
  if (current) current.scrollIntoView({ block: "nearest", inline: "nearest" });
  const button = document.querySelector("button.live");
  const help = document.querySelector("dialog.help");
  const seconds = 3;
  let isFollowing = Boolean(button);
  let isReading = false;
  const show = (text, isLost) => {
    button.setAttribute("aria-pressed", String(isFollowing));
    button.classList.toggle("lost", isLost);
    button.querySelector("span").textContent = text;
  };
  const replaced = async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("button.live");
    if (fresh) button.dataset.version = fresh.dataset.version;
    const scrolled = [...document.querySelectorAll(".scroll, .events")].map((each) => [each.scrollLeft, each.scrollTop]);
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.querySelectorAll(".scroll, .events").forEach((each, at) => {
      if (scrolled[at]) [each.scrollLeft, each.scrollTop] = scrolled[at];
    });
    tip.hidden = true;
  };
  const look = async (always) => {
    const isTyping = document.querySelector("main") && document.querySelector("main").contains(document.activeElement)
      && document.activeElement.matches("input, select, button");
    if (isReading || (!always && (!isFollowing || document.hidden || isTyping))) return;
    isReading = true;
    try {
      const answer = await fetch(button.dataset.versionUrl);
      if (!answer.ok) throw new Error(String(answer.status));
      if (always || (await answer.text()) !== button.dataset.version) await replaced();
      show(isFollowing ? "live" : "paused", false);
    } catch {
      show("no answer", true);
    } finally {
      isReading = false;
    }
  };
  const toggle = () => {
    isFollowing = !isFollowing;
    show(isFollowing ? "live" : "paused", false);
    if (isFollowing) look(false);
  };
  if (button) {
    button.addEventListener("click", toggle);
    setInterval(() => look(false), seconds * 1000);
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    const tab = document.querySelector(`.tabs a[data-key="${CSS.escape(event.key)}"]`);
    if (tab) tab.click();
    else if (event.key === "/") {
      const field = document.querySelector("[data-search]");
      const search = document.querySelector('.tabs a[href$="/key"]');
      if (field) field.focus();
      else if (search) search.click();
      else return;
    } else if (event.key === "p" && button) toggle();
    else if (event.key === "r" && button) look(true);
    else if (event.key === "?" && help) help.showModal();
    else return;
    event.preventDefault();
  });
})();
