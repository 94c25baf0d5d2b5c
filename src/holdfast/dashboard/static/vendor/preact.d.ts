/** The part of Preact that the dashboard uses. */
export type VNode = { type: unknown; props: unknown; key: unknown };
export type Child = VNode | string | number | boolean | null | undefined | Child[];
export function h(type: unknown, props: Record<string, unknown> | null, ...children: Child[]): VNode;
export function render(vnode: Child, parent: Element): void;
export const Fragment: unknown;
