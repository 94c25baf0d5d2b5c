/** The hooks of Preact that the dashboard uses. */
export function useState<T>(initial: T | (() => T)): [T, (next: T | ((previous: T) => T)) => void];
export function useRef<T>(initial: T): { current: T };
export function useEffect(effect: () => void | (() => void), inputs?: unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: unknown[]): void;
export function useMemo<T>(make: () => T, inputs?: unknown[]): T;
export function useCallback<T>(callback: T, inputs: unknown[]): T;
export function useErrorBoundary(callback?: (error: unknown) => void): [unknown, () => void];
export function useId(): string;
