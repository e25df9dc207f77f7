"""What a page must hold to, asked in the browser: names of controls, contrast of text, nothing wider than a window."""

from __future__ import annotations

from typing import Any

# Controls that a screen reader would find without a name.
NAMELESS = """() => [...document.querySelectorAll(
    'button, a[href], input, select, textarea, [role=slider], [role=switch], [role=combobox], [role=radio]')]
  .filter(one => one.checkVisibility({visibilityProperty: true}) && one.type !== 'hidden' && !one.ariaHidden)
  .filter(one => ![one.ariaLabel, one.innerText, one.title, one.placeholder, one.alt,
      ...[...(one.labels || [])].map(label => label.innerText + label.ariaLabel),
      ...(one.getAttribute('aria-labelledby') || '').split(' ').map(id => document.getElementById(id)?.innerText),
      one.closest("label")?.innerText, one.querySelector("img, svg title")?.textContent]
      .some(text => text && text.trim()))
  .map(one => one.outerHTML.slice(0, 160))"""

# Texts under 4.5 to 1 (3 to 1 where large) against the nearest ground that is opaque. Left out: what is disabled, drawn
# in a canvas or on a coloured cell, and formulas' invisible copies.
FAINT = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const over = (top, ground) => { const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(place => top[place] * a + ground[place] * (1 - a)); };
  const groundOf = node => { const stack = [];
    for (let at = node; at; at = at.parentElement) { const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 3 || colour[3] === 0) continue; stack.push(colour); if (colour[3] === undefined) break; }
    return stack.reverse().reduce((ground, top) => over(top, ground), [255, 255, 255]); };
  const found = [], walk = document.createTreeWalker(document.querySelector('.stApp'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) { const node = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || !node.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    if (node.closest('svg, canvas, .katex-mathml, [disabled], [aria-disabled=true], style, script')) continue;
    // A slider's value hangs above its thumb, whose ground it does not have.
    if (node.closest('[data-testid=stToolbar], [data-testid*=Slider]')) continue;
    const style = getComputedStyle(node), ground = groundOf(node), ink = over(parse(style.color), ground);
    const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b), ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.6 && style.fontWeight >= 600);
    if (ratio < (large ? 3 : 4.5)) found.push(`${text.slice(0, 40)} ${ratio.toFixed(2)} ${style.color} on ${ground}`); }
  return [...new Set(found)]; }"""

WIDE = "() => document.querySelector('[data-testid=stMain]').scrollWidth - window.innerWidth"


def faults(page: Any) -> list[str]:
    """What is wrong with a page that has settled; empty for a good one."""
    found = [f"no name: {one}" for one in page.evaluate(NAMELESS)]
    found += [f"faint: {one}" for one in page.evaluate(FAINT)]
    wider = page.evaluate(WIDE)
    return found + ([f"wider than the window by {wider} pixels"] if wider > 0 else [])


def focused(page: Any) -> str:
    """What has the keyboard: its name or text, and whether one can see that it has it."""
    return str(
        page.evaluate(
            """() => { const one = document.activeElement, style = getComputedStyle(one);
              const label = one.ariaLabel || one.innerText || one.closest('label')?.innerText
                || [...(one.labels || [])].map(label => label.innerText).join(' ') || one.outerHTML.slice(0, 80);
              return label.trim().replace(/\\s+/g, ' ').slice(0, 60); }"""
        )
    )
